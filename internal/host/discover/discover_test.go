package discover_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

func TestDiscover(t *testing.T) {
	tests := map[string]struct {
		fixture    string
		configured host.Paths
		bend       func(*host.Paths) // differences from the defaults
		node       string
		installed  bool
		notes      []string // parts of them that must be there
	}{
		"kubeadm": {
			fixture: "kubeadm", node: "worker-7", installed: true,
			bend: func(p *host.Paths) {
				p.KubeletConfig = "/var/lib/kubelet/config.yaml"
				p.StaticPods = "/etc/kubernetes/manifests"
				p.CRISocket = "/var/run/containerd/containerd.sock"
				p.ContainerdSocket = p.CRISocket
				p.CNIBinDirs = []string{"/usr/lib/cni"}
			},
			notes: []string{"kubelet: process 900", "containerd: process 800", "cgroupDriver systemd"},
		},
		"several kubelets": {
			fixture: "moved", node: "somehost", installed: true,
			bend:  func(*host.Paths) {},
			notes: []string{"several kubelets"},
		},
		"moved": {
			fixture: "moved", node: "node.example.com", installed: true,
			configured: host.Paths{KubeletRoot: "/data/kubelet", CNICacheDir: "/data/cache"},
			bend: func(p *host.Paths) {
				p.KubeletRoot, p.PluginRegistry = "/data/kubelet", "/data/kubelet/plugins_registry"
				p.KubeletConfig, p.Kubeconfig = "/srv/conf/kubelet.yaml", "/srv/kubeconfig"
				p.KubeletHealthz, p.KubeletAPI = "http://127.0.0.1:20248/healthz", "https://[::1]:20251"
				p.KubeletCAFile = "/data/pki/kubelet-server-current.pem"
				p.StaticPods, p.PodLogs = "/srv/conf/manifests", "/srv/podlogs"
				p.CRISocket, p.ContainerdSocket = "/data/c.sock", "/data/c.sock"
				p.ContainerdState, p.ContainerdRoot = "/data/cstate", "/data/croot"
				p.CgroupRoot = "/lab"
				p.CNIConfDir, p.CNIBinDirs = "/data/cni/conf", []string{"/data/cni/bin", "/data/cni/more"}
				p.NetnsDirs = []string{"/run/netns", "/data/cstate/io.containerd.grpc.v1.cri/netns"}
				p.CNICacheDir = "/data/cache"
			},
			notes: []string{"not read: /opt/*/own.toml", "40-d.conf: kind \"Other\"", "containerd: process 81"},
		},
		"dead kubelet": {
			fixture: "dead", node: "seven", installed: true,
			bend: func(p *host.Paths) {
				p.KubeletConfig = "/var/lib/kubelet/config.yaml"
				p.StaticPods = "/etc/kubernetes/manifests"
				p.CRISocket, p.ContainerdSocket = "/run/crio/crio.sock", ""
				p.KubeletHealthz, p.KubeletAPI = "", ""
			},
			notes: []string{"no kubelet runs", "kubeadm-flags.env"},
		},
		"CRI-O": {
			fixture: "crio", node: "seven",
			bend: func(p *host.Paths) {
				p.CRISocket, p.ContainerdSocket = "/run/crio/crio.sock", ""
				p.CNIConfDir, p.CNIBinDirs = "/data/cni", []string{"/opt/cni/bin", "/usr/libexec/cni"}
				p.NetnsDirs = append(p.NetnsDirs, "/data/ns/netns")
			},
			notes: []string{"CRI-O: process 61", "crio.conf.d/20-more/b.conf"},
		},
		"root directory moved, certificates not": {
			fixture: "root-only", node: "w", installed: true,
			bend: func(p *host.Paths) {
				p.KubeletRoot, p.PluginRegistry = "/data/kubelet", "/data/kubelet/plugins_registry"
				p.KubeletCAFile = "/var/lib/kubelet/pki/kubelet.crt"
			},
		},
		"no kubernetes": {
			fixture: "bare", node: "laptop", bend: func(*host.Paths) {},
		},
		"k3s": {
			fixture: "k3s", node: "edge", installed: true,
			bend:  k3sLayout,
			notes: []string{"part of k3s-server", "container runtime: /run/k3s"},
		},
		"k3s that says more": {
			fixture: "k3s-1.32", node: "edge", installed: true,
			bend: func(p *host.Paths) {
				k3sLayout(p)
				p.KubeletCAFile = "/var/lib/rancher/k3s/agent/serving-kubelet.crt"
			},
			notes: []string{"part of k3s-server", "kubelet configuration: /var/lib/rancher/k3s"},
		},
		"hostile": {
			fixture: "hostile", installed: true, bend: func(*host.Paths) {},
			notes: []string{"not an absolute path", "line 1: toml: basic strings cannot have new lines", "relative",
				"client certificate"},
		},
		"configured over everything": {
			fixture: "kubeadm", node: "worker-7", installed: true,
			configured: host.Paths{CRISocket: "/x/crio.sock", CNIBinDirs: []string{"/x/bin"}, CgroupDriver: "cgroupfs",
				InitPID: 7},
			bend: func(p *host.Paths) {
				p.KubeletConfig = "/var/lib/kubelet/config.yaml"
				p.StaticPods = "/etc/kubernetes/manifests"
				p.CRISocket, p.ContainerdSocket = "/x/crio.sock", ""
				p.CNIBinDirs, p.CgroupDriver, p.InitPID = []string{"/x/bin"}, "cgroupfs", 7
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			files := hosttest.Fixture(t, "testdata/discover/"+test.fixture+".txtar").Files
			got, err := discover.Discover(files, test.configured)
			if err != nil {
				t.Fatal(err)
			}
			want := discover.DefaultPaths()
			test.bend(&want)
			if diff := cmp.Diff(want, got.Paths); diff != "" {
				t.Errorf("paths (-want +got):\n%s\nnotes: %q", diff, got.Notes)
			}
			if got.NodeName != test.node || got.KubeletInstalled != test.installed {
				t.Errorf("node %q, installed %v; want %q, %v", got.NodeName, got.KubeletInstalled, test.node,
					test.installed)
			}
			notes := strings.Join(got.Notes, "\n")
			for _, part := range test.notes {
				if !strings.Contains(notes, part) {
					t.Errorf("no note says %q:\n%s", part, notes)
				}
			}
		})
	}
}

// k3sLayout is the layout of K3s (https://docs.k3s.io/cli/agent).
func k3sLayout(p *host.Paths) {
	const agent = "/var/lib/rancher/k3s/agent"
	p.CRISocket = "/run/k3s/containerd/containerd.sock"
	p.ContainerdSocket, p.ContainerdState, p.ContainerdRoot = p.CRISocket, "/run/k3s/containerd", agent+"/containerd"
	p.Kubeconfig, p.StaticPods = agent+"/kubelet.kubeconfig", agent+"/pod-manifests"
	p.CNIConfDir = agent + "/etc/cni/net.d"
	p.CNIBinDirs = []string{"/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/data/current/bin"}
	p.NetnsDirs = []string{"/run/netns", "/run/k3s/containerd/io.containerd.grpc.v1.cri/netns"}
}

func TestDiscoverWithoutProc(t *testing.T) {
	_, err := discover.Discover(host.Files{Root: t.TempDir()}, host.Paths{})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Discover() = %v, want ErrNotExist", err)
	}
}

// On any host that runs the test, the layout must be found without an error and without a blank.
func TestDiscoverThisHost(t *testing.T) {
	got, err := discover.Discover(host.Files{}, host.Paths{})
	if err != nil {
		t.Fatal(err)
	}
	if got.NodeName == "" || got.Paths.CRISocket == "" {
		t.Errorf("Discover() = %+v", got)
	}
	t.Logf("%+v", got)
}

func TestKubeletFinder(t *testing.T) {
	files := hosttest.Fixture(t, "testdata/discover/moved.txtar").Files
	for root, want := range map[string]int{"/data/kubelet": 70, "/var/lib/kubelet": 71, "/none": 0} {
		process, err := discover.KubeletFinder(files, host.Paths{KubeletRoot: root, InitPID: 1})()
		if process.PID != want || (want == 0) != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("root %s: %+v, %v; want PID %d", root, process, err, want)
		}
	}
}

// A kubelet whose main thread has ended is none any more, although a hung thread of it is left.
func TestEndingKubelet(t *testing.T) {
	h := hosttest.Fixture(t, "testdata/discover/moved.txtar")
	find := discover.KubeletFinder(h.Files, host.Paths{KubeletRoot: "/data/kubelet", InitPID: 1})
	before, err := find()
	if err != nil {
		t.Fatal(err)
	}
	hosttest.WriteStat(t, h, before.PID, fmt.Sprintf("%d (%s) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 9 0 %d 0 0\n", before.PID,
		before.Comm, before.StartTime))
	for name, find := range map[string]func() (host.Process, error){
		"the finder that knows it": find,
		"another":                  discover.KubeletFinder(h.Files, host.Paths{KubeletRoot: "/data/kubelet", InitPID: 1}),
	} {
		if process, err := find(); process.PID != 0 || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", name, process, err)
		}
	}
}
