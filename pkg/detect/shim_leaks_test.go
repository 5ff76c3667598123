package detect

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// What containerd knows is no leak, also before CRI knows it.
func TestShimLeaksContainerd(t *testing.T) {
	shims := []runningShim{{shim: shim{id: "a"}}, {shim: shim{id: "b"}}, {shim: shim{id: "c"}}}
	h := &host.Host{Runtime: hosttest.Runtime(), Containerd: hosttest.Containerd()}
	h.Containerd.Containers = hosttest.Answer([]*containers.Container{{ID: "a"}}, nil)
	h.Containerd.Leases = hosttest.Answer([]*leases.Lease{{ID: "b"}}, nil)
	got, err := knownToRuntime(t.Context(), h, shims)
	if diff := cmp.Diff(map[string]idState{"a": idKnown, "b": idKnown}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	for _, bend := range []func(){
		func() { h.Containerd.Leases = hosttest.Hang[[]*leases.Lease] },
		func() { h.Containerd.Containers = hosttest.Hang[[]*containers.Container] },
	} {
		bend()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if got, err := knownToRuntime(ctx, h, shims); err == nil {
			t.Errorf("a list that was not answered: %v", got)
		}
		cancel()
	}
}

// A real shim without a container, beside a real containerd, until it ends.
func TestShimLeaksReal(t *testing.T) {
	c := startContainerd(t)
	program, err := exec.LookPath("containerd-shim-runc-v2")
	if err != nil {
		t.Skip("needs containerd-shim-runc-v2")
	}
	h := c.runtimeHost(t)
	await(t, RuntimeHealth(DefaultRuntimeHealthSettings()), h, []string{"runtime-condition/NetworkReady=NetworkNotReady"})
	h.Clock = func() finding.Stamp {
		now := host.Now()
		now.Up += time.Hour
		return now
	}
	id := "nodeagent-test-" + strconv.Itoa(os.Getpid())
	look := func() []string {
		found, err := ShimLeaks().Run(t.Context(), h)
		if err != nil {
			t.Error(err)
		}
		var of []string
		for _, f := range found {
			if f.Subject.Name == id {
				of = append(of, f.Reason)
				t.Log(f.Message)
			}
		}
		return of
	}
	if got := look(); got != nil {
		t.Fatalf("before: %v", got)
	}
	bundle := t.TempDir()
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"ociVersion": "1.0.2", "annotations": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(bundle, "log") // which containerd reads
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	start := exec.CommandContext(t.Context(), program, "-namespace", "k8s.io", "-id", id, "-address", c.socket, "-publish-binary", "/bin/true", "start")
	start.Dir = bundle
	start.Env = append(os.Environ(), "TTRPC_ADDRESS="+c.socket+".ttrpc")
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("start a shim: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = os.Remove(strings.TrimPrefix(strings.TrimSpace(string(out)), "unix://")) })
	pid := shimPID(t, id)
	end := func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for syscall.Kill(pid, 0) == nil {
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
			<-time.After(10 * time.Millisecond)
		}
	}
	t.Cleanup(end)
	if diff := cmp.Diff([]string{"ShimWithoutContainer"}, look()); diff != "" {
		t.Errorf("while it runs (-want +got):\n%s", diff)
	}
	end()
	if got := look(); got != nil {
		t.Errorf("after its end: %v", got)
	}
}

func shimPID(t *testing.T, id string) int {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if text, _ := os.ReadFile(file); bytes.Contains(text, []byte("\x00"+id+"\x00")) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("no shim runs")
	return 0
}

// A runtime that takes the question and never answers costs five seconds, and proves nothing.
func TestShimLeaksRuntimeHangs(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/100/stat":    "100 (containerd-shim) S 1 100 100 0 -1 1077936384 1 0 0 0 10 10 0 0 20 0 20 0 300 1 1\n",
		"proc/100/cmdline": "/usr/bin/containerd-shim-runc-v2\x00-namespace\x00k8s.io\x00-id\x00a\x00",
	} {
		layOut(t, root, txtar.File{Name: name, Data: []byte(text)})
	}
	synctest.Test(t, func(t *testing.T) {
		h := &host.Host{Files: host.Files{Root: root}, Runtime: hosttest.Runtime(), Clock: hosttest.Clock}
		h.Runtime.Sandboxes = hosttest.Hang[[]*cri.PodSandbox]
		began := time.Now()
		found, err := ShimLeaks().Run(t.Context(), h)
		if took := time.Since(began); took != shimLeakPatience || !errors.Is(err, context.DeadlineExceeded) || found != nil {
			t.Errorf("after %s: %v, %v", took, found, err)
		}
	})
}
