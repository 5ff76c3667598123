package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// module is a nested module of the checkout that pins programs of others, which the lab builds from their sources.
type module struct {
	name     string // of its folder in test/, and with the version of the one in the cache
	source   string // path of the module that has the programs
	version  string // package variable that holds it
	programs []program
}

// program is built once. The times are for two cores and an empty build cache.
type program struct{ name, takes string }

func kubernetes() module {
	return module{"kubernetes", "k8s.io/kubernetes", "k8s.io/component-base/version.gitVersion", []program{
		{"kube-apiserver", "about 5 minutes the first time"},
		{"kubelet", "about 2 minutes the first time"},
		{"kube-controller-manager", "about a minute the first time"},
		{"kube-scheduler", "half a minute the first time"},
		{"kubectl", "half a minute the first time"},
	}}
}

func containerd2() module {
	return module{"containerd", "github.com/containerd/containerd/v2",
		"github.com/containerd/containerd/v2/version.Version", []program{
			{"containerd", "about a minute the first time"},
			{"containerd-shim-runc-v2", "some seconds"},
			{"ctr", "some seconds"},
		}}
}

func (m module) dir(repo string) string { return filepath.Join(repo, "test", m.name) }

// required is the version that the module's go.mod pins.
func (m module) required(repo string) (string, error) {
	path := filepath.Join(m.dir(repo), "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	line := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(m.source) + ` (v\S+)`)
	match := line.FindSubmatch(data)
	if match == nil {
		return "", fmt.Errorf("%s: does not require %s", path, m.source)
	}
	return string(match[1]), nil
}

// cacheDir is where the programs are put.
func (m module) cacheDir(repo string) (string, error) {
	version, err := m.required(repo)
	if err != nil {
		return "", err
	}
	return filepath.Join(repo, ".cache", m.name+"-"+version), nil
}

// Build builds all programs of others that a lab may run, unless the cache has them. It needs no root; an Up that
// begins meanwhile waits for it.
func Build(ctx context.Context, opts Options) error {
	repo, err := findRepo(opts.Repo)
	if err != nil {
		return err
	}
	return newProgress(opts.Log).buildModules(ctx, repo, kubernetes(), containerd2())
}

// buildPrograms builds what this lab runs of others unless the cache has it.
func (l *Lab) buildPrograms(ctx context.Context) error {
	modules := []module{kubernetes()}
	if l.Paths.ContainerdDir != debianDir {
		modules = append(modules, containerd2())
	}
	return l.buildModules(ctx, l.state.Repo, modules...)
}

// buildLock names the lock of a checkout's cache.
func buildLock(repo string) string {
	sum := sha256.Sum256([]byte(repo))
	return "nodeagent-lab-build-" + hex.EncodeToString(sum[:8])
}

func (l progress) buildModules(ctx context.Context, repo string, modules ...module) error {
	unlock, err := lock(ctx, buildLock(repo), "another command is building the lab's programs", l.say)
	if err != nil {
		return err
	}
	defer unlock()
	for _, m := range modules {
		if err := l.buildModule(ctx, repo, m); err != nil {
			return err
		}
	}
	return nil
}

// buildModule builds a module's programs into the cache unless they are there, built from the same go.mod.
func (l progress) buildModule(ctx context.Context, repo string, m module) error {
	data, err := os.ReadFile(filepath.Join(m.dir(repo), "go.mod"))
	if err != nil {
		return err
	}
	version, err := m.required(repo)
	if err != nil {
		return err
	}
	dir, err := m.cacheDir(repo)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	want := hex.EncodeToString(sum[:])
	// The cache ignores itself: nobody should commit 400 MB by mistake.
	if err := writeFile(filepath.Join(dir, "../.gitignore"), []byte("*\n"), 0o644); err != nil {
		return err
	}
	for _, p := range m.programs {
		out := filepath.Join(dir, p.name)
		stamp := out + ".go.mod.sha256"
		have, _ := os.ReadFile(stamp)
		if _, err := os.Stat(out); err == nil && strings.TrimSpace(string(have)) == want {
			continue
		}
		began := time.Now()
		l.say("building %s (%s) ...", p.name, p.takes)
		if err := l.goBuild(ctx, m.dir(repo), out, m.source+"/cmd/"+p.name, "-ldflags", "-s -w -X "+m.version+"="+
			version); err != nil {
			return err
		}
		if err := writeFile(stamp, []byte(want+"\n"), 0o644); err != nil {
			return err
		}
		l.say("built %s in %.0f s", p.name, time.Since(began).Seconds())
	}
	return nil
}
