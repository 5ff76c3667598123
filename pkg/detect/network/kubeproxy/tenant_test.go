package kubeproxy

import (
	"crypto/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/test/need"
)

// hostPort is a pod with kube-proxy's port: it gets the requests, and the check cannot tell.
func (w *proxyWorld) hostPort(check detect.Check, h *host.Host) {
	w.t.Helper()
	rule := func(do string) {
		out, err := exec.CommandContext(w.t.Context(), need.Program(w.t, "iptables"), "-t", "nat", do, "OUTPUT", "-p", "tcp",
			"--dport", "10256", "-j", "REDIRECT", "--to-ports", "8080").CombinedOutput()
		if err != nil {
			w.t.Fatalf("%v\n%s", err, out)
		}
	}
	unknown := func(err error) bool { return err != nil && strings.Contains(err.Error(), "hostPort") }
	rule("-A")
	checktest.AwaitError(w.t, check, h, unknown) // no process of the pod listens
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		w.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.NotFoundHandler()}
	defer server.Close()
	go func() { _ = server.Serve(listener) }()
	checktest.AwaitError(w.t, check, h, unknown)
	rule("-D")
}

// imitate puts the process into the cgroup of a pod on the node's network, of a tenant and of the cluster's own.
func (w *proxyWorld) imitate(h *host.Host, expect func(name, want string)) {
	const uid = "6f2a1c1e-58f0-4b0b-8f0e-000000000029"
	w.t.Helper()
	root, pid := "nodeagent-test-"+rand.Text(), []byte(strconv.Itoa(w.cmd.Process.Pid))
	for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"} {
		dir := filepath.Join(top, root, "kubepods", "pod"+uid)
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() {
			w.kill()
			for dir != top {
				checktest.RemoveCgroup(w.t, dir)
				dir = filepath.Dir(dir)
			}
		})
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	h.Paths.CgroupRoot = "/" + root
	h.Paths.PodLogs = w.t.TempDir()
	for _, step := range [][2]string{{"tenant", "KubeProxyNotAnswering warning"}, {"kube-system-2", "KubeProxyNotAnswering warning"},
		{"kube-system", "KubeProxyNotAnswering"}} {
		if err := os.Mkdir(filepath.Join(h.Paths.PodLogs, step[0]+"_kube-proxy_"+uid), 0o750); err != nil {
			w.t.Fatal(err)
		}
		expect("a silent process of this name in a pod of "+step[0], step[1])
	}
}
