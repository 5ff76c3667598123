package inside

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// repairConfig has seconds instead of the minutes of a node, and room for all repairs of this test. It is for the
// checks with findings here; see others.
const repairConfig = `
  kubelet-health: {every: 2s}
  runtime-health: {every: 2s}
  systemd-units: {every: 2s}
  loopback: {every: 2s}
  sysctls: {every: 2s, want: {vm.swappiness: "7"}}
  kernel-modules: {every: 2s, modules: [zram, pcspkr]}
`

const repairSettings = `
repair:
  minAge: 1s
  hold: 5s
  verifyWithin: 90s
  unitAge: 2s
  perHour: 100
  perDay: 100
  restartsPerDay: 100
  stopAfter: 100
  fleetBudget: none
  actions: {restart-unit: "on", reset-failed-units: "on", load-module: "on", restore-sysctl: "on", restore-loopback: "on"}
`

// events are the journal of repairs in the form for people.
func events(t *testing.T) string {
	t.Helper()
	return run(t, "nodeagent", "events")
}

// others switches all other checks off: an emulated machine needs its processors for the tested ones.
func others(t *testing.T) string {
	t.Helper()
	text := ""
	for _, line := range regexp.MustCompile(`(?m)^  ([a-z0-9-]+) +\S`).FindAllStringSubmatch(run(t, *binary, "check", "--list"), -1) {
		if !strings.Contains(repairConfig, "  "+line[1]+": {") {
			text += fmt.Sprintf("  %s: {enabled: false}\n", line[1])
		}
	}
	if strings.Count(text, "\n") < 50 {
		t.Fatalf("few other checks: %s", text)
	}
	return text
}

// patience is the time limit of a wait on an emulated machine on a busy host.
const patience = 10 * time.Minute

// awaitEvent waits until the journal has a line with each of the words. It renders the journal for people only after a
// change, since that takes seconds here.
func awaitEvent(t *testing.T, words ...string) {
	t.Helper()
	text, size := "", int64(-1)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Second) {
		info, err := os.Stat("/var/lib/nodeagent/repair.journal")
		if err != nil || info.Size() == size {
			continue
		}
		size = info.Size()
		text = events(t)
		for line := range strings.Lines(text) {
			if hasAll(line, words) {
				t.Log(strings.TrimSpace(line))
				return
			}
		}
	}
	status, _ := exec.Command("nodeagent", "status").CombinedOutput() // its exit code depends on the findings
	t.Fatalf("no event %q in:\n%s\n%s", words, text, status)
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// awaitStep waits until the status contains want about the step of restart-unit for a check's finding.
func awaitStep(t *testing.T, check, want string) {
	t.Helper()
	var s struct {
		Repair struct {
			Steps []struct{ Action, Check, Does, NotActed string }
		}
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Second) {
		s.Repair.Steps = nil
		if answer, err := daemon.Get("http://agent/status"); err == nil {
			_ = json.NewDecoder(answer.Body).Decode(&s)
			_ = answer.Body.Close()
		}
		for _, step := range s.Repair.Steps {
			if step.Action == "restart-unit" && step.Check == check && strings.Contains(step.NotActed, want) {
				t.Logf("%s: %s", check, step.NotActed)
				return
			}
		}
	}
	t.Fatalf("%s: nothing says %q: %+v", check, want, s.Repair.Steps)
}

// daemon queries the agent of the unit like its command, without starting that each time.
var daemon = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
	DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "/run/nodeagent/nodeagent.sock")
	}}}

// property is a property of a service in systemd.
func property(t *testing.T, unit, name string) string {
	t.Helper()
	return run(t, "systemctl", "show", "--value", "-p", name, unit)
}

// write writes a file in the guest.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// killMode sets the KillMode of a unit.
func killMode(t *testing.T, unit, mode string) {
	t.Helper()
	write(t, "/etc/systemd/system/"+unit+".d/mode.conf", "[Service]\nKillMode="+mode+"\n")
	run(t, "systemctl", "daemon-reload")
}

// node runs a containerd and a kubelet without an apiserver, in systemd units, each beside a process that must survive
// their restarts: one with the name of a shim, and a helper of kubelet.
func node(t *testing.T) {
	t.Helper()
	kubelets, err := filepath.Glob(filepath.Join(*repo, ".cache/kubernetes-v*/kubelet"))
	if err != nil || len(kubelets) == 0 {
		t.Fatalf("no kubelet: go run ./test/lab/labctl build: %v", err)
	}
	run(t, "install", "-m", "755", kubelets[len(kubelets)-1], "/usr/bin/kubelet")
	run(t, "install", "-m", "755", "/bin/sleep", "/usr/bin/containerd-shim-runc-v2")
	run(t, "modprobe", "overlay")
	write(t, "/etc/containerd/config.toml", "version = 2\n")
	write(t, "/var/lib/kubelet/config.yaml", `kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
enableServer: true
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 1Mi, nodefs.available: 1%}
`)
	for unit, program := range map[string][2]string{
		"containerd": {"containerd-shim-runc-v2 infinity", "containerd"},
		"kubelet":    {"sleep infinity", "kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=guest"},
	} {
		write(t, "/etc/systemd/system/"+unit+".service", fmt.Sprintf(
			"[Service]\nDelegate=yes\nExecStart=/bin/sh -c '/usr/bin/%s & exec /usr/bin/%s'\n", program[0], program[1]))
	}
	killMode(t, "kubelet.service", "process")
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "start", "containerd", "kubelet")
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		out, err := exec.Command("curl", "-s", "http://127.0.0.1:10248/healthz").Output()
		if err == nil && string(out) == "ok" {
			break
		}
		if time.Now().After(end) {
			log, _ := exec.Command("journalctl", "--no-pager", "-n", "40", "-u", "kubelet").CombinedOutput()
			t.Fatalf("kubelet does not answer: %v: %s\n%s", err, out, log)
		}
	}
}

// apiserver answers the only request of a repair, whether the Node has an annotation that pauses it, and returns a
// kubeconfig for it.
func apiserver(t *testing.T) string {
	t.Helper()
	run(t, "ip", "link", "add", "node0", "type", "dummy") // the loopback address will be removed
	run(t, "ip", "addr", "add", "192.0.2.1/32", "dev", "node0")
	run(t, "ip", "link", "set", "node0", "up")
	listener, err := net.Listen("tcp", "192.0.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1/nodes/guest" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"guest","uid":"of-guest"}}`)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := "/etc/nodeagent/kubeconfig"
	write(t, file, fmt.Sprintf(`{"kind": "Config", "apiVersion": "v1", "current-context": "x",
"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q, "tls-server-name": "example.com"}}],
"users": [{"name": "u", "user": {"token": "of-this-node"}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}`,
		server.URL, base64.StdEncoding.EncodeToString(authority)))
	run(t, "chmod", "600", file)
	return file
}

// TestRepairs: the agent's repairs on a node with cgroup v2 and systemd, under the restrictions of its own unit: each
// in a case where it helps, and in one where it does not and is left to a person.
func TestRepairs(t *testing.T) {
	needGuest(t)
	node(t)
	exec.Command("modprobe", "-r", "zram", "pcspkr").Run() // they may not be loaded
	write(t, "/etc/modprobe.d/never.conf", "install pcspkr /bin/true\n")
	put(t, "/proc/sys/vm/swappiness", "60")
	install(t, "checks:\n"+repairConfig+others(t)+repairSettings+"paths: {kubeconfig: "+apiserver(t)+"}\n")
	a := await(t)

	t.Run("kernel", func(t *testing.T) {
		awaitEvent(t, "load-module", "zram", "verified")
		if !strings.Contains(read("/proc/modules"), "zram ") {
			t.Error("zram is not loaded")
		}
		awaitEvent(t, "load-module", "pcspkr", "failed: ")
		awaitEvent(t, "restore-sysctl", "verified")
		if got := read("/proc/sys/vm/swappiness"); got != "7" {
			t.Errorf("vm.swappiness is %s", got)
		}
		run(t, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		awaitEvent(t, "restore-loopback", "verified")
	})
	t.Run("a failed transient unit", func(t *testing.T) {
		_ = exec.Command("systemd-run", "--unit=run-gone", "/bin/false").Run()
		awaitEvent(t, "run-gone.service", "verified")
	})
	t.Run("runtime", func(t *testing.T) { a.repairsRuntime(t) })
	t.Run("kubelet", func(t *testing.T) { a.repairsKubelet(t) })
	t.Log(events(t))
}

// repairsRuntime: containerd loses its socket. It is restarted only with KillMode=process, and the processes in its
// cgroup survive that.
func (a *agent) repairsRuntime(t *testing.T) {
	shim, main := run(t, "pgrep", "-o", "containerd-shim"), property(t, "containerd", "MainPID")
	killMode(t, "containerd.service", "control-group")
	run(t, "systemctl", "stop", service) // its connection would keep working
	run(t, "rm", "/run/containerd/containerd.sock")
	run(t, "systemctl", "start", service)
	for _, mode := range []struct{ name, want string }{
		{"control-group", "restart would end 1 containers: containerd.service has KillMode=control-group"},
		{"mixed", "restart would end 1 containers: containerd.service has KillMode=mixed"},
		{"none", "KillMode=none: systemd would start it beside the old one"},
	} {
		killMode(t, "containerd.service", mode.name)
		awaitStep(t, "runtime-health", mode.want)
		if now := property(t, "containerd", "MainPID"); now != main {
			t.Fatalf("%s: main process %s instead of %s", mode.name, now, main)
		}
	}
	killMode(t, "containerd.service", "process")
	awaitEvent(t, "restart-unit", "containerd", "verified")
	if now := property(t, "containerd", "MainPID"); now == main {
		t.Error("it was not restarted")
	}
	run(t, "kill", "-0", shim)
	if group := read("/proc/" + shim + "/cgroup"); !strings.HasSuffix(group, "/containerd.service") {
		t.Errorf("the shim is in %s", group)
	}
}

// repairsKubelet: kubelet is killed, and restarted once; then its configuration is broken: it is restarted once more,
// and never again.
func (a *agent) repairsKubelet(t *testing.T) {
	helper, shim := run(t, "pgrep", "-o", "-x", "sleep"), run(t, "pgrep", "-o", "containerd-shim")
	before := property(t, "kubelet", "MainPID")
	kill := func() { run(t, "systemctl", "kill", "--kill-who=main", "-s", "KILL", "kubelet") }
	kill()
	awaitEvent(t, "restart-unit", "kubelet", "verified")
	if now := property(t, "kubelet", "MainPID"); now == before || now == "0" {
		t.Errorf("main process %s, before %s", now, before)
	}
	run(t, "kill", "-0", helper)
	write(t, "/var/lib/kubelet/config.yaml", "this is no configuration\n")
	kill()
	awaitEvent(t, "restart-unit", "kubelet", "failed: ")
	awaitStep(t, "kubelet-health", "needs help: it was done once already")
	if text := events(t); strings.Count(text, "restart-unit") != 3 {
		t.Error(text)
	}
	run(t, "kill", "-0", helper, shim)
}
