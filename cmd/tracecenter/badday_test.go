package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
	"github.com/nodeagent/nodeagent/test/trace/watchtest"
)

// TestMain lets the test binary act as the program itself: tests kill it.
func TestMain(m *testing.M) {
	if os.Getenv("TRACECENTER_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// program is a tracecenter with a process of its own, and a simulated apiserver.
type program struct {
	t       *testing.T
	cluster *watchtest.Cluster
	dir, on string
	flags   []string
	cmd     *exec.Cmd
	log     bytes.Buffer // what it wrote to standard error; to be read when it has ended
}

func newProgram(t *testing.T, cluster *watchtest.Cluster, dir string, flags ...string) *program {
	t.Helper()
	p := &program{t: t, cluster: cluster, dir: dir, on: loopback.Free(t), flags: flags}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the program on %s: %s", p.on, p.log.String())
		}
	})
	p.start()
	return p
}

func (p *program) start() {
	p.t.Helper()
	p.cmd = exec.Command(os.Args[0], append([]string{"serve", "--kubeconfig", p.cluster.Kubeconfig(), "--dir", p.dir, "--listen", p.on,
		"--promised", "1s"}, p.flags...)...)
	p.cmd.Env = append(os.Environ(), "TRACECENTER_TEST_MAIN=1")
	p.cmd.SysProcAttr, p.cmd.Stderr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, &p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.await("ready", func() bool { return p.status() == http.StatusOK })
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *program) status() int {
	code, _ := ask(p.t, p.dir, p.on, "/readyz", p.on)
	return code
}

// await waits while leaders renew their Leases.
func (p *program) await(what string, holds func() bool) {
	p.t.Helper()
	wait(p.t, what, func() bool { p.cluster.Beat(); return holds() })
}

// create creates a pod that nobody schedules.
func (p *program) create(name string) {
	p.cluster.Pod("ADDED", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name),
		CreationTimestamp: metav1.Now()}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}}})
}

// outcome returns the stored verdict of a pod's creation.
func (p *program) outcome(name string) string {
	_, body := ask(p.t, p.dir, p.on, "/v1/pods/uid-"+name, p.on)
	if strings.Count(body, `"act":"creation"`) > 1 {
		p.t.Errorf("%s: two verdicts: %s", name, body)
	}
	for _, outcome := range []string{"missed", "unknown", "delivered"} {
		if strings.Contains(body, `"outcome":"`+outcome+`"`) {
			return outcome
		}
	}
	return ""
}

// The program is killed while pods are created. Each has one verdict, and no healthy one is missed.
func TestKilled(t *testing.T) {
	p := newProgram(t, watchtest.New(t), filepath.Join(t.TempDir(), "data"))
	names := []string{}
	for round := range 3 {
		for i := range 30 {
			name := fmt.Sprintf("%d-%d", round, i)
			p.create(name)
			names = append(names, name)
			if i == 15 && round < 2 {
				p.kill()
			}
		}
		if round < 2 {
			p.start()
		}
	}
	for _, name := range names {
		p.await(name+" judged", func() bool { return p.outcome(name) != "" })
		if got := p.outcome(name); got != "missed" && got != "unknown" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// The disk of the store is full for a while. The program says so, and loses no verdict.
func TestDiskFull(t *testing.T) {
	need.Root(t, "mounts a tmpfs")
	disk := t.TempDir()
	need.Kernel(t, "tmpfs", unix.Mount("tmpfs", disk, "tmpfs", 0, "size=2m"))
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	p := newProgram(t, watchtest.New(t), filepath.Join(disk, "data"))
	defer p.kill()
	p.create("before")
	p.await("a verdict", func() bool { return p.outcome("before") == "missed" })
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, bytes.Repeat([]byte{1}, 4<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	for i := range 200 {
		p.create(fmt.Sprint("full-", i))
	}
	p.await("not ready", func() bool {
		code, body := ask(t, p.dir, p.on, "/readyz", p.on)
		return code == http.StatusServiceUnavailable && strings.Contains(body, "cannot store")
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.await("ready again", func() bool { return p.status() == http.StatusOK })
	p.kill()
	kept, err := store.Open(t.Context(), p.dir, 30)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for i := range 200 {
		if acts, err := kept.Find(t.Context(), fmt.Sprint("uid-full-", i), "", ""); err != nil || len(acts) != 1 {
			t.Errorf("full-%d: %d verdicts, %v", i, len(acts), err)
		}
	}
}

// The replica that writes to PostgreSQL is killed under load: the other one stores the rest, each verdict once.
func TestRealPostgreSQLWriterKilled(t *testing.T) {
	p, cluster := newPostgres(t), watchtest.New(t)
	writer := newProgram(t, cluster, t.TempDir(), "--store", p.url())
	standby := newProgram(t, cluster, t.TempDir(), "--store", p.url())
	const pods = 300
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range pods {
		writer.create(fmt.Sprint(i))
		if i%50 == 49 { // verdicts are on their way while more pods come
			writer.await("some verdicts", func() bool { n, err := p.count("SELECT count(*) FROM acts"); return err == nil && n > i/4 || i > 150 })
		}
		if i == 150 {
			writer.kill()
		}
	}
	standby.await("all verdicts", func() bool {
		n, err := p.count("SELECT count(DISTINCT uid) FROM acts")
		return err == nil && n == pods || ctx.Err() != nil
	})
	for query, want := range map[string]int{"SELECT count(*) FROM acts": pods, "SELECT count(DISTINCT uid) FROM acts": pods,
		"SELECT count(*) FROM acts WHERE outcome NOT IN ('missed', 'unknown')": 0} {
		if n, err := p.count(query); err != nil || n != want {
			t.Errorf("%s: %d, want %d: %v", query, n, want, err)
		}
	}
}
