package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/test/need"
)

// The environment variables for the processes of these tests.
const (
	playKubelet  = "NODEAGENT_TEST_PLAY_KUBELET"  // a folder: run as a process called kubelet
	ownProcesses = "NODEAGENT_TEST_OWN_PROCESSES" // the test runs in PID and mount namespaces of its own
)

const nobody = 65534

func TestMain(m *testing.M) {
	if dir := os.Getenv(playKubelet); dir != "" {
		if err := kubeletPlayer(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// kubeletPlayer runs a process called kubelet. It serves an API and a runtime socket, writes down who asks, and names
// both in its configuration. It exits when its standard input ends.
func kubeletPlayer(dir string) error {
	asked, err := os.OpenFile(filepath.Join(dir, "asked"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(asked, r.URL.Path, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		return err
	}
	runtime, err := net.Listen("unix", filepath.Join(dir, "cri.sock"))
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := runtime.Accept()
			if err != nil {
				return
			}
			go func() {
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					fmt.Fprintln(asked, "runtime")
				}
			}()
		}
	}()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	exec := fmt.Sprintf(`"exec":{"apiVersion":"client.authentication.k8s.io/v1","interactiveMode":"Never","command":"/bin/sh",
"args":["-c","id -u > %s/executed; echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}'"]}`, dir)
	for name, text := range map[string]string{
		"config.yaml": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: " + port + "\n",
		"kubeconfig": fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[{"name":"u","user":{%s}}]}`,
			server.URL, base64.StdEncoding.EncodeToString(certificate), exec),
		"root/pki/kubelet.crt": string(certificate),
		"ready":                "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			return err
		}
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// ownNamespaces runs the calling test once more in new PID and mount namespaces and returns true there. In them the
// test sees only its own processes.
func ownNamespaces(t *testing.T) bool {
	t.Helper()
	need.Root(t, "makes PID namespaces, starts processes of another user")
	if os.Getenv(ownProcesses) != "" {
		private := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		need.Kernel(t, "mount namespaces", errors.Join(private, unix.Mount("proc", "/proc", "proc", 0, "")))
		return true
	}
	child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), ownProcesses+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	need.Child(t, out)
	if err != nil {
		t.Errorf("in namespaces of its own: %v", err)
	}
	t.Logf("in namespaces of its own:\n%s", out)
	return false
}

// player is one fake kubelet.
type player struct {
	dir string
	pid int
}

// play starts the program, which must be readable by all, as a user with a private folder.
func play(t *testing.T, base, name string, uid int) player {
	t.Helper()
	program := filepath.Join(base, "bin", name)
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		data, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = executable.Write(program, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p := player{dir: filepath.Join(base, fmt.Sprint("home", uid))}
	if err := errors.Join(os.Mkdir(p.dir, 0o755), os.Chown(p.dir, uid, uid)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--kubeconfig="+p.dir+"/kubeconfig", "--config="+p.dir+
		"/config.yaml",
		"--root-dir="+p.dir+"/root", "--container-runtime-endpoint=unix://"+p.dir+"/cri.sock",
		"--hostname-override=evil")
	cmd.Env = []string{playKubelet + "=" + p.dir}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)},
		Pdeathsig: syscall.SIGKILL}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for range 12000 {
		if _, err := os.Stat(filepath.Join(p.dir, "ready")); err == nil {
			return p
		}
		<-ticks.C
	}
	t.Fatal("the process called kubelet does not come up")
	return p
}

// A user's real process called kubelet, with a kubeconfig that names a program, an API that takes tokens and a runtime
// socket. The agent runs, shows and stores none of it, with and without root's kubelet, and names the process.
func TestRealImpostor(t *testing.T) {
	if !ownNamespaces(t) {
		return
	}
	t.Cleanup(ownedtest.Temp())
	base, err := os.MkdirTemp("", "impostor")
	if err == nil {
		err = errors.Join(os.Chmod(base, 0o755), os.Chmod(filepath.Dir(base), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	evil := play(t, base, "kubelet", nobody)

	cfg := config.Default()
	cfg.StateDir, cfg.ServiceAccountDir, cfg.NodeName = filepath.Join(base, "state"), filepath.Join(base, "none"),
		"node-a"
	if err := os.Mkdir(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	open := func() *Clients {
		t.Helper()
		clients, err := OpenHost(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { clients.Close() })
		return clients
	}
	harmless := func(clients *Clients) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, _ = clients.Host.Cluster.Node(ctx)
		_, _ = clients.Host.Kubelet.Pods(ctx)
		_, _ = clients.Host.Runtime.Version(ctx)
		clients.KeepLayout(cfg)
		for _, name := range []string{"executed", "asked"} {
			if data, err := os.ReadFile(filepath.Join(evil.dir, name)); err == nil && len(data) > 0 {
				t.Errorf("%s: %s", name, data)
			}
		}
		data, _ := json.Marshal(clients.Host.Paths)
		remembered, _ := os.ReadFile(layoutFile(cfg))
		if all := string(data) + string(remembered) + clients.Host.NodeName; strings.Contains(all, evil.dir) ||
			strings.Contains(all, "evil") {
			t.Errorf("found %s", all)
		}
	}

	clients := open()
	harmless(clients)
	if p, err := clients.Host.Kubelet.Process(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("alone: process %d, %v", p.PID, err)
	}
	found, err := discover.Impostors(t.Context(), clients.Host)
	if err != nil || len(found) != 1 || found[0].PID != evil.pid || found[0].User != nobody {
		t.Errorf("impostors %+v, %v", found, err)
	}

	real := play(t, base, "kubelet", 0)
	if p, err := discover.KubeletFinder(host.Files{}, host.Paths{InitPID: 1, KubeletRoot: real.dir +
		"/root"})(); err != nil || p.PID != real.pid {
		t.Errorf("root's kubelet: process %d, want %d, %v", p.PID, real.pid, err)
	}
	d, err := discover.Discover(host.Files{}, host.Paths{})
	if err != nil || !d.KubeletRunning || d.Paths.KubeletRoot != real.dir+"/root" || !d.KubeconfigNamed {
		t.Errorf("root's kubelet: %+v, %v", d, err)
	}
}

// The discovered socket may belong to another process by the time it is used: the listener decides.
func TestRealImpostorOfTheRuntime(t *testing.T) {
	if !ownNamespaces(t) {
		return
	}
	t.Cleanup(ownedtest.Temp())
	base, err := os.MkdirTemp("", "runtime")
	if err == nil {
		err = errors.Join(os.Chmod(base, 0o755), os.Chmod(filepath.Dir(base), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	evil := play(t, base, "kubelet", nobody)
	socket := filepath.Join(evil.dir, "cri.sock")
	runtime, closer, err := cri.NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := runtime.Version(ctx); !errors.Is(err, discover.ErrNotRoots) {
		t.Errorf("version: %v", err)
	}
	if p, err := runtime.Process(ctx); !errors.Is(err, discover.ErrNotRoots) {
		t.Errorf("process %d, %v", p.PID, err)
	}
	if data, _ := os.ReadFile(filepath.Join(evil.dir, "asked")); len(data) > 0 {
		t.Errorf("it was asked: %s", data)
	}
}
