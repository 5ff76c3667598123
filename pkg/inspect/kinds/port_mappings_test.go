package kinds_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

// The rules that the real portmap plugin wrote for a deleted sandbox are leftovers with its pod, with and without the
// cached result. Those of a living pod, of one being created, and of podman's network are not reported.
func TestPortMappings(t *testing.T) {
	for _, iptables := range []string{"iptables", "iptables-legacy"} {
		t.Run(iptables, func(t *testing.T) { testPortMappings(t, iptables) })
	}
}

func testPortMappings(t *testing.T, iptables string) {
	hosttest.PrivateNetwork(t)
	const plugins = "/usr/lib/cni"
	need.Program(t, plugins+"/portmap", iptables)
	if program, err := exec.LookPath(iptables); iptables != "iptables" && err == nil { // the plugin's, by name
		bin := t.TempDir()
		if err := os.Symlink(program, filepath.Join(bin, "iptables")); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	}
	n := newNode(t)
	n.Add(other, "starting")
	cni := libcni.NewCNIConfigWithCacheDir([]string{plugins}, n.Host.Paths.CNICacheDir, nil)
	forward := func(network, uid, sandbox string, port int) {
		t.Helper()
		list, err := libcni.ConfListFromBytes([]byte(strings.NewReplacer("NAME", network, "DIR", t.TempDir()).Replace(
			`{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"bridge","bridge":"nabr1","ipam":{"type":"host-local",
			"dataDir":"DIR","ranges":[[{"subnet":"10.250.8.0/24"}]]}},{"type":"portmap","capabilities":{"portMappings":true}}]}`)))
		if err != nil {
			t.Fatal(err)
		}
		netns := filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+uid)
		hosttest.PinNetns(t, netns)
		conf := &libcni.RuntimeConf{ContainerID: sandbox, NetNS: netns, IfName: "eth0",
			CapabilityArgs: map[string]any{"portMappings": []map[string]any{
				{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}}
		if network != "podman" {
			conf.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "p"},
				{"K8S_POD_UID", uid}}
		}
		if _, err := cni.AddNetworkList(t.Context(), list, conf); err != nil {
			t.Fatalf("CNI ADD: %v", err)
		}
	}
	podman := strings.Repeat("e", 64)
	forward("pods", dead, deadSandbox, 8080)
	forward("pods", living, sandbox, 8081)
	forward("pods", other, newSandbox, 8082)
	forward("podman", "55555555-5555-4555-8555-555555555555", podman, 8083)
	i := n.inspector()
	check := func(report object.Report, gone object.Verdict) {
		t.Helper()
		got := map[string]object.Verdict{}
		for _, o := range report.Objects {
			if o.Kind == object.PortMapping {
				got[o.SandboxID] = o.Verdict
			}
			if o.Kind == object.PortMapping && strings.Contains(o.ID, packetfilter.LegacyTable) !=
				(iptables == "iptables-legacy") {
				t.Errorf("found as %s", o.ID)
			}
			if o.Kind == object.PortMapping && o.SandboxID == deadSandbox && (o.Pod.UID != dead ||
				o.Facts["ports"] != "8080:8080" || !strings.HasPrefix(o.Facts["target"], "CNI-DN-")) {
				t.Errorf("%+v", o)
			}
		}
		want := map[string]object.Verdict{deadSandbox: gone, sandbox: object.Live, newSandbox: object.Live,
			podman: object.Foreign}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	report, history := passes(t, n, i, nil, 3, 4*time.Minute)
	check(report, object.Candidate)
	for _, cached := range []string{"pods-" + deadSandbox,
		"podman-" + podman} { // like a DEL without capability arguments
		if err := os.Remove(filepath.Join(n.Host.Paths.CNICacheDir, "results", cached+"-eth0")); err != nil {
			t.Fatal(err)
		}
	}
	report, _ = passes(t, n, i, history, 1, 4*time.Minute)
	check(report, object.Leftover)
}
