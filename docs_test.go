package ratelimit

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-rate-limit/caddy-rate-limit/redisstore/redistest"
)

// Every Caddyfile in the README and in docs is adapted and provisioned.
func TestSnippets(t *testing.T) {
	t.Setenv("REDIS_PASSWORD", "secret")
	t.Setenv("SENTINEL_PASSWORD", "secret")
	t.Setenv("REDIS_CERTIFICATES", filepath.Dir(redistest.NewCertificates(t).CA)) // ca.pem, cert.pem and key.pem
	files, err := filepath.Glob("docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no docs", err)
	}
	for _, file := range append(files, "README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		snippets := regexp.MustCompile("(?s)```caddyfile\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(snippets) < 3 {
			t.Fatalf("only %d snippets found in %s", len(snippets), file)
		}
		for i, s := range snippets {
			t.Run(fmt.Sprint(file, " ", i+1), func(t *testing.T) {
				config, err := adapt(t, []byte(s[1]))
				if err == nil {
					err = validate(config)
				}
				if err != nil {
					t.Errorf("%v in\n%s", err, s[1])
				}
			})
		}
	}
}

// The syntax in the README and above UnmarshalCaddyfile names every option there is.
func TestSyntaxIsComplete(t *testing.T) {
	for _, file := range []string{"README.md", "caddyfile.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, syntax, _ := strings.Cut(string(text), "rate_limit [<matcher>] {")
		syntax = regexp.MustCompile(`(?s)^.*?\n(//\t)?}`).FindString(syntax)
		for _, options := range [][]string{zoneOptions, handlerOptions, redisOptions, tlsOptions, settleOptions, {"align", "min_interval", "buckets", "initial", "warm_up", "cold_factor"}} {
			for _, option := range options {
				if option == "distributed" || option == "storage" { // in the README they are elsewhere
					continue
				}
				if !regexp.MustCompile(`(?m)^[/\t ]*` + option + `\b`).MatchString(syntax) {
					t.Errorf("%s does not show the option %s", file, option)
				}
			}
		}
	}
}

// Caddyfile.example does what the README shows.
func TestExample(t *testing.T) {
	example, err := os.ReadFile("Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(example), ":8080 {", "{\n\tadmin {$ADMIN}\n}\n{$SITE} {", 1)
	c := startCaddy(t, config)
	// The client of startCaddy has asked before, so a few may be taken already.
	r := c.get(t, "/")
	r.want(t, 200, "RateLimit-Policy", `"everybody";q=20;w=1`)
	if r.body != "Hello." || !regexp.MustCompile(`^"everybody";r=1\d;t=1$`).MatchString(r.field("RateLimit")) {
		t.Errorf("RateLimit: %s, body %q", r.field("RateLimit"), r.body)
	}
	for i := range 6 {
		r, err := c.do("POST", "http://"+c.site+"/login", "")
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 200, false: 429}[i < 5]; r.StatusCode != want {
			t.Errorf("attempt %d to log in: %d, want %d", i+1, r.StatusCode, want)
		}
		if i == 5 {
			_, login, _ := strings.Cut(r.field("RateLimit"), ", ")
			wantText(t, "RateLimit", login, `"login";r=0;t=60`)
			r.want(t, 429, "Retry-After", "60")
		}
	}
	readme, _ := os.ReadFile("README.md")
	if !strings.Contains(string(readme), "go run ./cmd/caddy run --config Caddyfile.example") {
		t.Error("the README no longer says how to run the example")
	}
}
