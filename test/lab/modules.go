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
	return module{"containerd", "github.com/containerd/containerd/v2", "github.com/containerd/containerd/v2/version.Version", []program{
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

// buildPrograms builds what the lab runs of others unless the cache has it.
func (l *Lab) buildPrograms(ctx context.Context) error {
	if err := l.buildModule(ctx, kubernetes(), l.Paths.BinDir); err != nil {
		return err
	}
	if l.Paths.ContainerdDir == debianDir {
		return nil
	}
	return l.buildModule(ctx, containerd2(), l.Paths.ContainerdDir)
}

// buildModule builds a module's programs into dir unless they are there, built from the same go.mod.
func (l *Lab) buildModule(ctx context.Context, m module, dir string) error {
	data, err := os.ReadFile(filepath.Join(m.dir(l.state.Repo), "go.mod"))
	if err != nil {
		return err
	}
	version, err := m.required(l.state.Repo)
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
		if err := l.goBuild(ctx, m.dir(l.state.Repo), out, m.source+"/cmd/"+p.name, "-ldflags", "-s -w -X "+m.version+"="+version); err != nil {
			return err
		}
		if err := writeFile(stamp, []byte(want+"\n"), 0o644); err != nil {
			return err
		}
		l.say("built %s in %.0f s", p.name, time.Since(began).Seconds())
	}
	return nil
}
