package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// binaries are built from the module in test/kubernetes. The times are for two cores and an empty build cache.
var binaries = [...]struct{ name, takes string }{
	{"kube-apiserver", "about 5 minutes the first time"},
	{"kubelet", "about 2 minutes the first time"},
	{"kube-controller-manager", "about a minute the first time"},
	{"kube-scheduler", "half a minute the first time"},
	{"kubectl", "half a minute the first time"},
}

// findRepo returns the checkout to build from: where, or the nearest one above the working directory.
func findRepo(where string) (string, error) {
	if where != "" {
		return where, nil
	}
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test/kubernetes/go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("no checkout of nodeagent above %s", start)
		}
	}
}

var versionLine = regexp.MustCompile(`(?m)^(?:require)?\s*k8s\.io/kubernetes (v\S+)`)

// kubernetesVersion is the one pinned in test/kubernetes/go.mod.
func kubernetesVersion(repo string) (string, error) {
	path := filepath.Join(repo, "test/kubernetes/go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	match := versionLine.FindSubmatch(data)
	if match == nil {
		return "", fmt.Errorf("%s: does not require k8s.io/kubernetes", path)
	}
	return string(match[1]), nil
}

func cacheDir(repo string) (string, error) {
	version, err := kubernetesVersion(repo)
	if err != nil {
		return "", err
	}
	return filepath.Join(repo, ".cache", "kubernetes-"+version), nil
}

// buildKubernetes builds the Kubernetes binaries unless the cache has them, built from the same go.mod.
func (l *Lab) buildKubernetes(ctx context.Context) error {
	module := filepath.Join(l.state.Repo, "test/kubernetes")
	data, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return err
	}
	version, err := kubernetesVersion(l.state.Repo)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	want := hex.EncodeToString(sum[:])
	// The cache ignores itself: nobody should commit 400 MB by mistake.
	if err := writeFile(filepath.Join(l.Paths.BinDir, "../.gitignore"), []byte("*\n"), 0o644); err != nil {
		return err
	}
	for _, b := range binaries {
		out := l.binary(b.name)
		stamp := out + ".go.mod.sha256"
		have, _ := os.ReadFile(stamp)
		if _, err := os.Stat(out); err == nil && strings.TrimSpace(string(have)) == want {
			continue
		}
		began := time.Now()
		l.say("building %s (%s) ...", b.name, b.takes)
		flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
		if err := l.goBuild(ctx, module, out, "k8s.io/kubernetes/cmd/"+b.name, "-ldflags", flags); err != nil {
			return err
		}
		if err := writeFile(stamp, []byte(want+"\n"), 0o644); err != nil {
			return err
		}
		l.say("built %s in %.0f s", b.name, time.Since(began).Seconds())
	}
	return nil
}

// buildHelpers builds the lab's own programs: the pause container's and the node proxy.
func (l *Lab) buildHelpers(ctx context.Context) error {
	for name, pkg := range map[string]string{"pause": "./test/lab/images/pause", "nodeproxy": "./test/lab/nodeproxy"} {
		if err := l.goBuild(ctx, l.state.Repo, filepath.Join(l.Dir, "bin", name), pkg); err != nil {
			return err
		}
	}
	return nil
}

// goBuild compiles one static program and tells every ten seconds that it has not fallen asleep.
func (l *Lab) goBuild(ctx context.Context, module, out, pkg string, flags ...string) error {
	args := append([]string{"build", "-C", module, "-trimpath", "-o", out}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", pkg, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.say("  still building %s", filepath.Base(pkg))
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", pkg, err, output.String())
			}
			return nil
		}
	}
}

// run executes a program of the host and returns its output; the error carries what it said.
func run(ctx context.Context, stdin string, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second // a grandchild may keep the pipe open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
