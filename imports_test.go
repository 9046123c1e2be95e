package ratelimit

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goList runs go list and returns its words.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	output, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(output))
}

// Imports run one way: root → redisstore → store → algorithms → standard library. Besides, store
// imports a circuit breaker and a keyed hash, and the root the packages below internal.
func TestImportsRunOneWay(t *testing.T) {
	standard := func(path string) bool { return !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") }
	tests := []struct {
		pkg  string
		may  []string // what it may depend on besides the standard library and itself
		also string   // and packages of this kind
	}{
		{"algorithms", nil, ""},
		{"internal/keyhash", nil, ""},
		{"internal/jsonvalue", nil, ""},
		{"internal/formvalue", nil, ""},
		{"internal/httpfields", []string{"algorithms"}, ""},
		{"internal/topk", nil, ""},
		{"internal/relay", nil, ""},
		{"store", []string{"algorithms", "internal/keyhash"}, ""},
		{"internal/storetest", []string{"algorithms", "internal/keyhash", "store"}, ""},
		{"redisstore/internal/slots", []string{"algorithms"}, ""},
		{"internal/wire", []string{"algorithms", "internal/keyhash", "store"}, ""},
		{"redisstore", []string{"algorithms", "internal/keyhash", "redisstore/internal/slots", "internal/wire", "store"}, "not caddy"},
		{"internal/accesslog", nil, "not caddy"},
		{"internal/adminapi", nil, ""},
		{"internal/closest", nil, ""},
		{"internal/terminal", nil, "any but ours"},
		{"internal/command", []string{
			"algorithms", "internal/accesslog", "internal/adminapi", "internal/closest", "internal/keyhash", "internal/simulate",
			"internal/simulate/htmlreport", "internal/statuspage", "internal/terminal", "store",
		}, "any but ours"},
		{"internal/simulate", []string{"algorithms", "internal/accesslog", "internal/keyhash", "internal/terminal", "store"}, "any but ours"},
		{"internal/simulate/htmlreport", []string{
			"algorithms", "internal/accesslog", "internal/keyhash", "internal/simulate", "internal/terminal", "store",
		}, "any but ours"},
		{"docs/pictures", []string{"algorithms"}, ""},
	}
	for _, test := range tests {
		for _, dep := range goList(t, "-deps", "./"+test.pkg) {
			ours, isOurs := strings.CutPrefix(dep, modulePath+"/")
			switch {
			case standard(dep), ours == test.pkg, isOurs && slices.Contains(test.may, ours):
			case dep == "github.com/sony/gobreaker/v2" && (strings.HasPrefix(test.pkg, "store") || slices.Contains(test.may, "store")):
			case dep == "github.com/dchest/siphash" && (test.pkg == "internal/keyhash" || slices.Contains(test.may, "internal/keyhash")):
			case test.also == "any but ours" && dep != modulePath && !isOurs:
			case test.also == "not caddy" && dep != modulePath && !isOurs && !strings.Contains(dep, "caddy"):
			default:
				t.Errorf("%s depends on %s", test.pkg, dep)
			}
		}
	}
	for _, pkg := range goList(t, "./...") {
		imports := goList(t, "-f", "{{join .Imports \" \"}} {{join .TestImports \" \"}} {{join .XTestImports \" \"}}", pkg)
		if strings.HasPrefix(pkg, modulePath+"/redisstore") || pkg == modulePath+"/internal/redistest" {
			continue
		}
		for _, path := range imports {
			if strings.HasPrefix(path, "github.com/redis/") {
				t.Errorf("%s imports %s: only redisstore and redistest may", pkg, path)
			}
		}
	}
	for _, dep := range goList(t, "-deps", "./cmd/caddy") {
		if dep == "testing" || strings.HasPrefix(dep, modulePath) && strings.HasSuffix(dep, "test") {
			t.Errorf("the program holds test code: %s", dep)
		}
	}
}

// A build by a user downloads all that go.mod requires, also for tests. So each direct requirement
// is part of the program. Tests that need anything else are in a separate module.
func TestRequirementsAreForUsers(t *testing.T) {
	built := goList(t, "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/caddy")
	output, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(output, &file); err != nil {
		t.Fatal(err)
	}
	direct := 0
	for _, r := range file.Require {
		if r.Indirect {
			continue
		}
		direct++
		if !slices.Contains(built, r.Path) {
			t.Errorf("go.mod requires %s, which the program doesn't use", r.Path)
		}
	}
	if direct == 0 {
		t.Error("go.mod requires nothing")
	}
}
