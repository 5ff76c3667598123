// Package helm checks the chart with the real helm, which this module requires, not the product.
package helm

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const (
	repository = "../.."
	kubernetes = repository + "/packaging/kubernetes"
	chart      = kubernetes + "/chart"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// program is the path of the real helm, the same that the lab's tests use.
var program = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "run", "./test/lab/labctl", "helm")
	cmd.Dir, cmd.Stderr = repository, os.Stderr
	path, err := cmd.Output()
	return strings.TrimSpace(string(path)), err
})

// helm runs the real command.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	// Without any settings of the caller's helm.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
		"KUBECONFIG="+os.DevNull)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func template(t *testing.T, args ...string) string {
	t.Helper()
	out, stderr, err := helm(t, append([]string{"template", "nodeagent", chart, "--namespace", "nodeagent"},
		args...)...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", args, err, stderr)
	}
	return out
}

func TestLint(t *testing.T) {
	for name, args := range map[string][]string{"default": nil, "full": {"--values", "testdata/full.values.yaml"}} {
		if out, stderr, err := helm(t, append([]string{"lint", "--strict", chart}, args...)...); err != nil {
			t.Errorf("%s: %v\n%s%s", name, err, out, stderr)
		}
	}
}

// compare compares with a golden file, or writes it.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what the chart renders; if the change is meant: make manifests, and in test/helm: go "+
			"test . -update\n(-file +rendered):\n%s", file, diff)
	}
}

func TestTemplate(t *testing.T) {
	compare(t, "testdata/default.golden.yaml", template(t))
	compare(t, "testdata/full.golden.yaml", template(t, "--values", "testdata/full.values.yaml"))
}

// The chart renders the files that users apply without helm.
func TestManifests(t *testing.T) {
	plain := []string{"--set", "namespace.create=true"}
	compare(t, kubernetes+"/manifests/nodeagent.yaml", template(t, plain...))
	for _, name := range []string{"namespace", "serviceaccount", "rbac", "admission"} {
		plain = append(plain, "--show-only", "templates/"+name+".yaml")
	}
	compare(t, kubernetes+"/rbac.yaml", template(t, plain...))
	compare(t, kubernetes+"/node-identity.yaml", template(t, "--set", "namespace.create=true,rights.nodeIdentity=true",
		"--show-only", "templates/namespace.yaml", "--show-only", "templates/node-identity.yaml"))
	compare(t, kubernetes+"/rights.yaml",
		template(t, "--set", "namespace.create=true,rights.kubelet=true,rights.pods=true,rights.taint=true", "--show-only",
			"templates/rights.yaml"))
	compare(t, kubernetes+"/claims.yaml", template(t, "--set", "namespace.create=true,rights.taint=true", "--show-only",
		"templates/claims.yaml"))
}

func TestSchemaIsOfTheConfiguration(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "-C", repository, "run", "./packaging/kubernetes/schema")
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	got, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	compare(t, chart+"/values.schema.json", string(got))
}

func TestSchemaRejects(t *testing.T) {
	for _, tt := range []struct{ name, set, want string }{
		{"unknown value", "imagee.tag=1", "additional properties 'imagee' not allowed"},
		{"unknown key of the configuration", "config.checks.load.enbled=true",
			"additional properties 'enbled' not allowed"},
		{"duration without a unit", "config.inspect.every=5", "/config/inspect/every"},
		{"unknown mode", "config.remediate.mode=yes", "'dry-run'"},
		{"negative number", "config.checks.load.loadPerCPU=-1", "/config/checks/load/loadPerCPU"},
		{"more than a tenth of the nodes", "updateStrategy.maxUnavailable=25%", "/updateStrategy/maxUnavailable"},
		{"no node at all", "updateStrategy.maxUnavailable=0", "/updateStrategy/maxUnavailable"},
		{"memory without a number", "resources.limits.memory=lots", "/resources/limits/memory"},
		{"no memory limit", "resources.limits.memory=null", "memory"},
		{"bad pull policy", "image.pullPolicy=Sometimes", "/image/pullPolicy"},
		{"image with a space", "image.repository=a b", "/image/repository"},
		{"port out of range", "apiserver.port=70000", "/apiserver/port"},
		{"tolerations that are no list", "tolerations=all", "/tolerations"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, stderr, err := helm(t, "template", "nodeagent", chart, "--set", tt.set)
			if err == nil || !strings.Contains(stderr, tt.want) {
				t.Errorf("--set %s: %v, want an error with %q\n%s%s", tt.set, err, tt.want, stderr, out)
			}
		})
	}
}

// object holds the fields of a rendered object that the tests below read.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Rules    []struct {
		APIGroups []string `yaml:"apiGroups"`
		Resources []string
		Verbs     []string
	}
	Spec yaml.Node
}

func objects(t *testing.T, rendered string) []object {
	t.Helper()
	var all []object
	decoder := yaml.NewDecoder(strings.NewReader(rendered))
	for {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			all = append(all, o)
		}
	}
}

// The agent accepts the configurations that the chart writes.
func TestConfigurationIsTaken(t *testing.T) {
	agent := filepath.Join(t.TempDir(), "nodeagent")
	if out, err := exec.CommandContext(t.Context(), "go", "-C", repository, "build", "-o", agent,
		"./cmd/nodeagent").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for name, args := range map[string][]string{"default": nil, "full": {"--values", "testdata/full.values.yaml"}} {
		found := false
		for _, o := range objects(t, template(t, args...)) {
			if o.Kind != "ConfigMap" {
				continue
			}
			found = true
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(o.Data["config.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), agent, "config", "validate",
				file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
		if !found {
			t.Errorf("%s: no ConfigMap", name)
		}
	}
}

// No part of the host is mounted: a mount of its root would pin the volumes of other pods.
func TestNothingOfTheHostIsMounted(t *testing.T) {
	for _, o := range objects(t, template(t)) {
		if o.Kind != "DaemonSet" {
			continue
		}
		text, err := yaml.Marshal(&o.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("hostPath")) {
			t.Errorf("the DaemonSet mounts a path of the host:\n%s", text)
		}
	}
}
