package docs_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/caddy-rate-limit/caddy-rate-limit/internal/caddytest"
	"github.com/caddy-rate-limit/caddy-rate-limit/internal/errtest"
)

// manifest is the part of a Kubernetes object that the tests look at.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Replicas int
		Ports    []struct {
			TargetPort string `yaml:"targetPort"`
		}
		Template struct {
			Spec struct {
				Containers []struct {
					Env []struct {
						Name      string
						ValueFrom struct {
							SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
						} `yaml:"valueFrom"`
					}
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					ReadinessProbe probe `yaml:"readinessProbe"`
					LivenessProbe  probe `yaml:"livenessProbe"`
				}
				Volumes []struct {
					ConfigMap struct{ Name string } `yaml:"configMap"`
				}
			}
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// manifests returns the objects of an example, by kind.
func manifests(t *testing.T, text string) map[string]manifest {
	t.Helper()
	all := make(map[string]manifest)
	for decoder := yaml.NewDecoder(strings.NewReader(text)); ; {
		var object manifest
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[object.Kind] = object
	}
}

// The objects of the recipe fit together. TestExampleWithThreeCaddys shows that Caddys share budgets, and TestSnippets that the
// Caddyfile is valid.
func TestKubernetes(t *testing.T) {
	config, page := caddytest.ReadFile(t, "examples/kubernetes/Caddyfile"), caddytest.ReadFile(t, "docs/recipes/kubernetes.md")
	objects := manifests(t, caddytest.ReadFile(t, "examples/kubernetes/caddy.yaml"))
	var made struct {
		Resources          []string
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
	}
	errtest.None(t, yaml.Unmarshal([]byte(caddytest.ReadFile(t, "examples/kubernetes/kustomization.yaml")), &made))
	if len(made.ConfigMapGenerator) != 1 || fmt.Sprint(made.Resources, made.ConfigMapGenerator[0].Files) != "[caddy.yaml] [Caddyfile]" {
		t.Fatalf("the kustomization is %+v", made)
	}
	pod := objects["Deployment"].Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.Volumes) != 1 || pod.Volumes[0].ConfigMap.Name != made.ConfigMapGenerator[0].Name {
		t.Fatalf("the pod is %+v", pod)
	}
	caddy := pod.Containers[0]
	ports := make(map[string]int)
	for _, port := range caddy.Ports {
		ports[port.Name] = port.ContainerPort
		if !strings.Contains(config, fmt.Sprintf("\n:%d {", port.ContainerPort)) {
			t.Errorf("the Caddyfile has no site on %d", port.ContainerPort)
		}
	}
	if target := objects["Service"].Spec.Ports[0].TargetPort; ports[target] != 8080 {
		t.Errorf("the Service is for port %q", target)
	}
	for _, p := range []probe{caddy.ReadinessProbe, caddy.LivenessProbe} {
		if ports[p.HTTPGet.Port] != 8081 || !strings.Contains(config, "respond "+p.HTTPGet.Path+" 200") {
			t.Errorf("probe %+v", p)
		}
	}
	share := fmt.Sprintf("on_store_error local 1/%d", objects["Deployment"].Spec.Replicas)
	if !strings.Contains(config, share) {
		t.Errorf("the Caddyfile does not say %s", share)
	}

	if len(caddy.Env) != 1 || caddy.Env[0].Name != "REDIS_PASSWORD" {
		t.Fatalf("the environment is %+v", caddy.Env)
	}
	secret := caddy.Env[0].ValueFrom.SecretKeyRef
	if command := fmt.Sprintf("$ kubectl create secret generic %s --from-literal=%s=change-me\n", secret.Name, secret.Key); !strings.Contains(page, command) {
		t.Errorf("the page does not say %q", command)
	}
}
