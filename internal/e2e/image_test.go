package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// The Dockerfile copies files that are there, and its health check tells a Caddy that runs from one
// that doesn't.
func TestImage(t *testing.T) {
	t.Parallel()
	dockerfile := strings.ReplaceAll(caddytest.ReadFile(t, "Dockerfile"), "\\\n", "")
	ignored := caddytest.ReadFile(t, ".dockerignore")
	copied := regexp.MustCompile(`(?m)^COPY (\w\S*) /`).FindAllStringSubmatch(dockerfile, -1)
	built := regexp.MustCompile(`go build .* \./(\S+)\n`).FindStringSubmatch(dockerfile)
	if len(copied) == 0 || built == nil {
		t.Fatal("the Dockerfile copies nothing, or builds nothing")
	}
	workspace := caddytest.ReadFile(t, "go.work")
	files := []string{built[1]}
	for _, module := range regexp.MustCompile(`(?m)^\t\./(\S+)$`).FindAllStringSubmatch(workspace, -1) {
		files = append(files, module[1])
	}
	for _, c := range copied {
		files = append(files, c[1])
	}
	for _, file := range files {
		errtest.Report(t, errtest.Of(os.Stat(file)))
		if regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(strings.SplitN(file, "/", 2)[0]) + `$`).MatchString(ignored) {
			t.Errorf(".dockerignore keeps %s out of the image", file)
		}
	}
	check := regexp.MustCompile(`HEALTHCHECK.*\tCMD (.*)\n`).FindStringSubmatch(dockerfile)
	if check == nil {
		t.Fatal("the Dockerfile has no health check")
	}
	if _, err := exec.LookPath("wget"); err != nil {
		t.Skip(err)
	}
	c := caddytest.StartProcess(t, caddytest.Site("zone a {\n gcra 1 1h\n}"))
	healthy := func() bool {
		command := strings.ReplaceAll(check[1], "127.0.0.1:2019", c.Admin)
		return exec.Command("sh", "-c", strings.Replace(command, "wget", "wget --tries=1", 1)).Run() == nil
	}
	if !healthy() {
		t.Error("a Caddy that runs counts as broken")
	}
	_ = c.Process.Process.Kill()
	<-c.Ended
	if healthy() {
		t.Error("a Caddy that has ended counts as healthy")
	}
}
