package distro_test

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/distro"
)

// TestTable: each row is complete, names absolute paths, and only patterns that can be matched.
func TestTable(t *testing.T) {
	ids := map[string]bool{}
	for _, d := range distro.All() {
		t.Run(d.ID, func(t *testing.T) {
			if d.ID == "" || d.Name == "" || ids[d.ID] {
				t.Error("no ID or name of its own")
			}
			ids[d.ID] = true
			if len(d.Units) == 0 && d.Commands == nil {
				t.Error("nothing says how its kubelet is started")
			}
			if d.Kubelet.Root == "" || d.Runtime.Socket == "" || len(d.Traces) == 0 {
				t.Error("no root directory, socket or traces")
			}
			for text, value := range map[string]string{"found": d.Found, "set": d.Set, "install": d.Install,
				"sources": strings.Join(d.Sources, "")} {
				if value == "" {
					t.Errorf("no words on %s", text)
				}
			}
			for _, name := range slices.Concat(d.Traces, d.Settings, d.Runtime.CNIBins, []string{d.Args, d.Config,
				d.ConfigDir, d.Kubelet.Root, d.Kubelet.Kubeconfig, d.Kubelet.StaticPods, d.Runtime.Socket,
				d.Runtime.Config, d.Runtime.Root, d.Runtime.State, d.Runtime.CNIConf}) {
				if got := d.Expand(name, ""); got != "" && (!filepath.IsAbs(got) || strings.Contains(got, "{")) {
					t.Errorf("path %q is %q", name, got)
				}
			}
			for _, pattern := range slices.Concat(d.Units, d.RuntimeUnits) {
				if _, err := path.Match(pattern, ""); err != nil || strings.HasSuffix(pattern, ".service") {
					t.Errorf("unit %q: %v", pattern, err)
				}
			}
			for _, program := range d.Programs {
				if len(program) > 15 {
					t.Errorf("program %q: the kernel keeps 15 bytes", program)
				}
			}
		})
	}
}

func TestExpand(t *testing.T) {
	k3s, _ := distro.ByID("k3s")
	if got := k3s.Expand(k3s.Kubelet.Kubeconfig, "/data/k3s/"); got != "/data/k3s/agent/kubelet.kubeconfig" {
		t.Error(got)
	}
	if got := k3s.Expand("--kubeconfig={data}/x", ""); got != "--kubeconfig=/var/lib/rancher/k3s/x" {
		t.Error(got)
	}
}

func TestNames(t *testing.T) {
	for unit, id := range map[string]string{"k3s.service": "k3s", "k3s-agent": "k3s", "k3s-edge.service": "k3s",
		"rke2-agent.service": "rke2", "k0sworker": "k0s", "snap.microk8s.daemon-kubelite.service": "microk8s",
		"snap.k8s.kubelet": "k8s-snap", "edgecore.service": "kubeedge", "k3sup.service": "", "ssh.service": "",
		"containerd.service": ""} {
		if d, _ := distro.OfUnit(unit); d.ID != id {
			t.Errorf("unit %s is of %q, want %q", unit, d.ID, id)
		}
	}
	for _, unit := range []string{"containerd", "crio.service", "snap.microk8s.daemon-containerd.service"} {
		if !distro.IsRuntimeUnit(unit) {
			t.Errorf("%s is no runtime's", unit)
		}
	}
	for comm, id := range map[string]string{"k3s-server": "k3s", "kubelite": "microk8s", "edgecore": "kubeedge",
		"kubelet": "", "k0s": ""} {
		if d, _ := distro.Embedding(comm); d.ID != id {
			t.Errorf("program %s embeds %q, want %q", comm, d.ID, id)
		}
	}
}

// TestNoKubelet: a node of the control plane alone has no kubelet.
func TestNoKubelet(t *testing.T) {
	for _, test := range []struct {
		id   string
		args string
		want bool
	}{
		{"k3s", "server", false},
		{"k3s", "server --disable-agent", true},
		{"k3s", "server --disable-agent=false", false},
		{"k0s", "worker", false},
		{"k0s", "controller", true},
		{"k0s", "controller --enable-worker", false},
		{"k0s", "controller --single=true", false},
	} {
		d, _ := distro.ByID(test.id)
		if got := d.NoKubelet(strings.Fields(test.args)); got != test.want {
			t.Errorf("%s %s: %v", test.id, test.args, got)
		}
	}
}

// A node of a distribution that may have one of several runtimes has the one whose socket kubelet uses.
func TestRuntimeUnitOfSocket(t *testing.T) {
	for _, test := range [][3]string{
		{"kubeadm", "/run/containerd/containerd.sock", "containerd"},
		{"kubeadm", "/run/crio/crio.sock", "crio"},
		{"kubeadm", "/var/run/crio/crio.sock", "crio"},
		{"kubeadm", "/run/cri-dockerd.sock", "docker"},
		{"", "/run/crio/crio.sock", "crio"},
		{"openshift", "/run/crio/crio.sock", "crio"},
		{"k3s", "/run/k3s/containerd/containerd.sock", "k3s"},
		{"microk8s", "/var/snap/microk8s/common/run/containerd.sock", "snap.microk8s.daemon-containerd"},
		{"kubeadm", "/run/other.sock", "containerd"},
		{"eks-al2", "/run/crio/crio.sock", "containerd"}, // has no other
	} {
		n := distro.Node{ID: test[0], Socket: test[1]}
		if got := n.RuntimeUnit(); got != test[2] {
			t.Errorf("%s with %s: %s, want %s", test[0], test[1], got, test[2])
		}
		if got, want := n.Advise("`journalctl -u containerd`"), "`journalctl -u "+test[2]+"`"; got != want {
			t.Errorf("%s with %s: %s, want %s", test[0], test[1], got, want)
		}
	}
}

func TestDataOf(t *testing.T) {
	for _, test := range [][3]string{
		{"{data}/data/*/bin/*", "/data/k3s/data/abc/bin/k3s", "/data/k3s"},
		{"{data}/data/*/bin/*", "/var/lib/rancher/k3s/data/current/bin/k3s-server", "/var/lib/rancher/k3s"},
		{"{data}/data/*/bin/*", "/usr/local/bin/k3s", ""},
		{"{data}/data/*/bin/*", "/data/x/bin/k3s", ""},
		{"{data}/bin/*", "/srv/k0s/bin/kubelet", "/srv/k0s"},
		{"{data}/args/kubelet", "/var/snap/microk8s/6000/args/kubelet", "/var/snap/microk8s/6000"},
		{"", "/usr/bin/kubelet", ""},
		{"{data}/args/kubelet", "args/kubelet", ""},
	} {
		if got := distro.DataOf(test[0], test[1]); got != test[2] {
			t.Errorf("%s tells of %s: %q, want %q", test[1], test[0], got, test[2])
		}
	}
}

// Checks ask the table about each process of the node, every minute: an answer allocates no memory.
func TestAnswersAllocateNothing(t *testing.T) {
	if got := testing.AllocsPerRun(10, func() {
		distro.Embedding("bash")
		distro.OfUnit("ssh.service")
		distro.KubeletPrograms()
		distro.Launchers()
		distro.IsRuntimeUnit("ssh")
	}); got > 0 {
		t.Errorf("%.0f allocations", got)
	}
}
