package lab

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// module is a nested module of the checkout that pins third-party programs; the lab builds them from source.
type module struct {
	name     string // of its folder in test/ and, with the version, of the folder in the cache
	source   string // path of the module with the programs
	version  string // package variable that holds it
	takes    string // on two cores with an empty build cache
	folder   string // of the programs in that module; cmd if empty
	programs []string
	flags    []string
	cgo      bool                                                           // needs gcc, and the libraries to link with
	also     func(l progress, ctx context.Context, module, to string) error // builds the parts that are not Go; or nil
}

func kubernetes() module {
	return module{name: "kubernetes", source: "k8s.io/kubernetes", version: "k8s.io/component-base/version.gitVersion",
		takes:    "some 6 minutes the first time",
		programs: []string{"kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kubectl"}}
}

func containerd2() module {
	return module{name: "containerd", source: "github.com/containerd/containerd/v2",
		version: "github.com/containerd/containerd/v2/version.Version", takes: "a minute the first time",
		programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"}}
}

func helm() module {
	return module{name: "helm", source: "helm.sh/helm/v4", version: "helm.sh/helm/v4/internal/version.version",
		takes: "two minutes the first time", programs: []string{"helm"}}
}

// crio omits the parts that need cgo, except pinns: signatures of images, btrfs, and names of devices.
func crio() module {
	return module{name: "crio", source: "github.com/cri-o/cri-o", version: "github.com/cri-o/cri-o/internal/version.gitTag",
		takes: "three minutes the first time", programs: []string{"cmd/crio", "test/copyimg"}, folder: ".",
		flags: []string{"-tags", "containers_image_openpgp,exclude_graphdriver_btrfs,btrfs_noversion," +
			"containers_image_ostree_stub"},
		also: progress.buildPinns}
}

// runc is needed for idmapped mounts, which Debian's does not support. Its code that enters namespaces is in C.
func runc() module {
	return module{name: "runc", source: "github.com/opencontainers/runc", version: "main.gitCommit",
		takes: "half a minute the first time", programs: []string{"runc"}, folder: "..", cgo: true,
		flags: []string{"-tags", "seccomp"}} // which kubelet requires for each sandbox
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

// cacheDir is the folder of the programs.
func (m module) cacheDir(repo string) (string, error) {
	version, err := m.required(repo)
	if err != nil {
		return "", err
	}
	return filepath.Join(repo, ".cache", m.name+"-"+version), nil
}

// Build builds all third-party programs that a lab may run, unless the cache has them. It needs no root; an Up that
// starts meanwhile waits for it.
func Build(ctx context.Context, opts Options) error {
	repo, err := findRepo(opts.Repo)
	if err != nil {
		return err
	}
	return newProgress(opts.Log).buildModules(ctx, repo, kubernetes(), containerd2())
}

// Helm builds helm unless the cache has it, and returns its path. The tests of the charts and of the lab use the same.
func Helm(ctx context.Context, opts Options) (string, error) {
	repo, err := findRepo(opts.Repo)
	if err != nil {
		return "", err
	}
	if err := newProgress(opts.Log).buildModules(ctx, repo, helm()); err != nil {
		return "", err
	}
	dir, err := helm().cacheDir(repo)
	return filepath.Join(dir, "helm"), err
}

// buildPrograms builds the third-party programs of this lab unless the cache has them.
func (l *Lab) buildPrograms(ctx context.Context) error {
	modules := []module{kubernetes()}
	if l.Paths.ContainerdDir != debianDir {
		modules = append(modules, containerd2())
	}
	if l.Paths.CRIODir != "" {
		modules = append(modules, crio())
	}
	if l.Paths.RuncDir != "" {
		modules = append(modules, runc())
	}
	return l.buildModules(ctx, l.state.Repo, modules...)
}

// buildLock names the lock of a checkout's cache.
func buildLock(repo string) string {
	sum := sha256.Sum256([]byte(repo))
	return "nodeagent-lab-build-" + hex.EncodeToString(sum[:8])
}

func (l progress) buildModules(ctx context.Context, repo string, modules ...module) error {
	unlock, err := lock(ctx, buildLock(repo), "another command is building the lab's programs", l.logf)
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

// buildModule builds a module's programs into the cache, all in one call of the compiler, unless they are there, built
// from the same go.mod.
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
	// The cache has its own .gitignore: 400 MB must not be committed by mistake.
	if err := writeFile(filepath.Join(dir, "../.gitignore"), []byte("*\n"), 0o644); err != nil {
		return err
	}
	marker := filepath.Join(dir, "go.mod.sha256") // written when all programs are built
	if have, _ := os.ReadFile(marker); strings.TrimSpace(string(have)) == want && m.built(dir) {
		return nil
	}
	began := time.Now()
	l.logf("building %s (%s) ...", m.name, m.takes)
	var packages []string
	for _, name := range m.programs {
		packages = append(packages, path.Join(m.source, cmp.Or(m.folder, "cmd"), name))
	}
	// No compiler flags: packages shared with the product are then compiled only once.
	flags := append([]string{"-ldflags", "-s -w -X " + m.version + "=" + version}, m.flags...)
	if err := l.goBuild(ctx, m.dir(repo), dir+"/", packages, m.cgo, flags...); err != nil {
		return err
	}
	if m.also != nil {
		if err := m.also(l, ctx, m.dir(repo), dir); err != nil {
			return err
		}
	}
	l.logf("built %s in %.0f s", m.name, time.Since(began).Seconds())
	return writeFile(marker, []byte(want+"\n"), 0o644)
}

// built reports whether dir has all programs of the module.
func (m module) built(dir string) bool {
	return !slices.ContainsFunc(m.programs, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, path.Base(name)))
		return err != nil
	})
}
