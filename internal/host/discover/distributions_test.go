package discover_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/distro"
)

const kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// deadNode is a node of a distribution with a stopped kubelet.
type deadNode struct {
	files      map[string]string
	id, unit   string
	root       string // of kubelet; empty: the default
	kubeconfig string
	socket     string
	healthz    string // port; empty: 10248
}

func deadNodes() map[string]deadNode {
	unit := func(exec string) string { return "[Service]\nExecStart=" + exec + "\n" }
	return map[string]deadNode{
		"K3s server": {id: "k3s", unit: "k3s", kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
			socket: "/run/k3s/containerd/containerd.sock",
			files:  map[string]string{"/etc/systemd/system/k3s.service": unit("/usr/local/bin/k3s server")}},
		"K3s agent of another name, data elsewhere": {id: "k3s", unit: "k3s-edge",
			kubeconfig: "/data/k3s/agent/kubelet.kubeconfig",
			files: map[string]string{"/etc/systemd/system/k3s-edge.service": "[Service]\nExecStart=/usr/local/bin/k3s " +
				"\\\n    agent \\\n\t'--data-dir' \\\n\t'/data/k3s' \\\n"}},
		"K3s, data elsewhere by its environment": {id: "k3s", unit: "k3s-agent",
			kubeconfig: "/srv/k/agent/kubelet.kubeconfig",
			files: map[string]string{
				"/etc/systemd/system/k3s-agent.service":     "[Service]\nEnvironmentFile=-/etc/systemd/system/%N.env\nEnvironmentFile=-/etc/systemd/system/k3s-agent.service.env\n" + unit("/usr/local/bin/k3s agent"),
				"/etc/systemd/system/k3s-agent.service.env": "K3S_DATA_DIR='/srv/k'\n"}},
		"K3s, data elsewhere by its settings": {id: "k3s", unit: "k3s", kubeconfig: "/mnt/k3s/agent/kubelet.kubeconfig",
			healthz: "10333", files: map[string]string{
				"/etc/systemd/system/k3s.service": unit("/usr/local/bin/k3s server"),
				"/etc/rancher/k3s/config.yaml":    "data-dir: /mnt/k3s\nkubelet-arg:\n- healthz-port=10333\n"}},
		"K3s without its unit": {id: "k3s", unit: "k3s",
			kubeconfig: "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
			files:      map[string]string{"/var/lib/rancher/k3s/agent/kubelet.kubeconfig": "x"}},
		"RKE2 agent": {id: "rke2", unit: "rke2-agent", kubeconfig: "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
			socket: "/run/k3s/containerd/containerd.sock",
			files: map[string]string{"/usr/local/lib/systemd/system/rke2-agent.service": unit(
				"/usr/local/bin/rke2 agent")}},
		"k0s worker": {id: "k0s", unit: "k0sworker", root: "/var/lib/k0s/kubelet", kubeconfig: "/var/lib/k0s/kubelet.conf",
			socket: "/run/k0s/containerd.sock",
			files: map[string]string{"/etc/systemd/system/k0sworker.service": unit("/usr/local/bin/k0s worker " +
				"--token-file=/etc/k0s/token")}},
		"k0s controller with a worker, data elsewhere": {id: "k0s", unit: "k0scontroller", root: "/d/kubelet",
			kubeconfig: "/d/kubelet.conf", healthz: "10400", files: map[string]string{
				"/etc/systemd/system/k0scontroller.service": unit("/usr/local/bin/k0s controller --data-dir=/d --enable-worker"),
				"/d/kubelet-config.yaml":                    kubeletHead + "healthzPort: 10400\n"}},
		"MicroK8s": {id: "microk8s", unit: "snap.microk8s.daemon-kubelite",
			root:       "/var/snap/microk8s/common/var/lib/kubelet",
			kubeconfig: "/var/snap/microk8s/current/credentials/kubelet.config",
			socket:     "/var/snap/microk8s/common/run/containerd.sock",
			files: map[string]string{
				"/etc/systemd/system/snap.microk8s.daemon-kubelite.service": unit("/usr/bin/snap run microk8s.daemon-kubelite"),
				"/var/snap/microk8s/current/args/kubelet":                   "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n"}},
		"K8s snap": {id: "k8s-snap", unit: "snap.k8s.kubelet", kubeconfig: "/etc/kubernetes/kubelet.conf",
			socket: "/var/snap/k8s/common/run/containerd.sock", files: map[string]string{
				"/etc/systemd/system/snap.k8s.kubelet.service": unit("/usr/bin/snap run k8s.kubelet"),
				"/var/snap/k8s/common/args/kubelet":            "--kubeconfig=\"/etc/kubernetes/kubelet.conf\"\n--container-runtime-endpoint=/var/snap/k8s/common/run/containerd.sock\n"}},
		"RKE1": {id: "rke1", kubeconfig: "/etc/kubernetes/ssl/kubecfg-kube-node.yaml",
			files: map[string]string{"/etc/kubernetes/ssl/kubecfg-kube-node.yaml": "x"}},
		"EKS AL2023": {id: "eks-al2023", unit: "kubelet", kubeconfig: "/var/lib/kubelet/kubeconfig", healthz: "10555",
			files: map[string]string{
				"/etc/systemd/system/kubelet.service":              "[Service]\nEnvironmentFile=/etc/eks/kubelet/environment\nExecStart=/usr/bin/kubelet $NODEADM_KUBELET_ARGS\n",
				"/etc/eks/kubelet/environment":                     "NODEADM_KUBELET_ARGS=\"--config=/etc/kubernetes/kubelet/config.json --config-dir=/etc/kubernetes/kubelet/config.json.d --kubeconfig=/var/lib/kubelet/kubeconfig\"\n",
				"/etc/kubernetes/kubelet/config.json":              kubeletHead,
				"/etc/kubernetes/kubelet/config.json.d/40-a.conf":  kubeletHead + "healthzPort: 10555\n",
				"/etc/kubernetes/kubelet/config.json.d/README.txt": "x"}},
		"EKS AL2": {id: "eks-al2", unit: "kubelet", kubeconfig: "/var/lib/kubelet/kubeconfig", files: map[string]string{
			"/etc/systemd/system/kubelet.service":         unit("/usr/bin/kubelet --config /etc/kubernetes/kubelet/kubelet-config.json --kubeconfig /var/lib/kubelet/kubeconfig"),
			"/etc/kubernetes/kubelet/kubelet-config.json": kubeletHead}},
		"Bottlerocket": {id: "bottlerocket", unit: "kubelet", kubeconfig: "/etc/kubernetes/kubelet/kubeconfig",
			files: map[string]string{"/usr/lib/systemd/system/kubelet.service": unit("/usr/bin/kubelet --config /etc/kubernetes/kubelet/config --kubeconfig /etc/kubernetes/kubelet/kubeconfig"),
				"/etc/kubernetes/kubelet/config": kubeletHead}},
		"GKE": {id: "gke", unit: "kubelet", kubeconfig: "/var/lib/kubelet/kubeconfig", healthz: "10300",
			files: map[string]string{"/home/kubernetes/kubelet-config.yaml": kubeletHead + "healthzPort: 10300\n"}},
		"AKS": {id: "aks", unit: "kubelet", kubeconfig: "/var/lib/kubelet/kubeconfig", files: map[string]string{
			"/etc/kubernetes/azure.json": "{}",
			"/etc/default/kubelet":       "KUBELET_FLAGS=--kubeconfig=/var/lib/kubelet/kubeconfig --container-runtime-endpoint=unix:///run/containerd/containerd.sock\n"}},
		"OpenShift": {id: "openshift", unit: "kubelet", kubeconfig: "/var/lib/kubelet/kubeconfig",
			socket: "/run/crio/crio.sock", files: map[string]string{
				"/etc/systemd/system/kubens.service": unit("/bin/true"),
				"/etc/systemd/system/kubelet.service": unit("/usr/local/bin/kubenswrapper /usr/bin/kubelet " +
					"--config=/etc/kubernetes/kubelet.conf --kubeconfig=/var/lib/kubelet/kubeconfig " +
					"--container-runtime-endpoint=/run/crio/crio.sock"),
				"/etc/kubernetes/kubelet.conf": kubeletHead}},
		"Talos": {id: "talos", kubeconfig: "/etc/kubernetes/kubeconfig-kubelet",
			files: map[string]string{"/etc/kubernetes/kubeconfig-kubelet": "x"}},
		"minikube": {id: "minikube", unit: "kubelet", kubeconfig: "/etc/kubernetes/kubelet.conf", files: map[string]string{
			"/var/lib/minikube/certs/ca.crt": "x", "/etc/kubernetes/kubelet.conf": "x"}},
		"kind": {id: "kind", unit: "kubelet", kubeconfig: "/etc/kubernetes/kubelet.conf", files: map[string]string{
			"/kind/version": "v1.35.0", "/etc/kubernetes/kubelet.conf": "x"}},
		"KubeEdge": {id: "kubeedge", unit: "edgecore", root: "/data/edged", healthz: "none",
			kubeconfig: "/etc/kubernetes/kubelet.conf", files: map[string]string{
				"/etc/kubeedge/config/edgecore.yaml": "modules:\n  edged:\n    tailoredKubeletFlag: {rootDirectory: /data/edged}\n"}},
		"kubeadm": {id: "kubeadm", unit: "kubelet", kubeconfig: "/etc/kubernetes/kubelet.conf", healthz: "10249",
			files: map[string]string{
				"/usr/lib/systemd/system/kubelet.service": unit("/usr/bin/kubelet"),
				"/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": "[Service]\n" +
					"Environment=\"KUBELET_CONFIG_ARGS=--config=/srv/kubelet.yaml\"\nExecStart=\n" +
					"ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS\n",
				"/srv/kubelet.yaml": kubeletHead + "healthzPort: 10249\n"}},
		"a unit of another name": {id: "kubeadm", unit: "my-kube", root: "/srv/kl",
			kubeconfig: "/srv/kc", files: map[string]string{
				"/etc/systemd/system/my-kube.service": unit("/opt/x/kubelet --root-dir=/srv/kl --kubeconfig=/srv/kc")}},
		"pods alone": {id: "kubeadm", unit: "kubelet", kubeconfig: "/etc/kubernetes/kubelet.conf", files: map[string]string{
			"/var/lib/kubelet/pods/5da3387d-ad1c-11ea-a025-525400767782/x": ""}},
	}
}

// TestDeadKubelets: a node with a dead kubelet is still recognized, and its layout comes from its distribution's files.
func TestDeadKubelets(t *testing.T) {
	tested := map[string]bool{}
	for name, node := range deadNodes() {
		tested[node.id] = true
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			removeKubelet(t, root)
			for file, text := range node.files {
				put(t, root+file, text)
			}
			got, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil || !got.KubeletInstalled || got.KubeletRunning {
				t.Fatalf("installed %v, running %v, %v: %q", got.KubeletInstalled, got.KubeletRunning, err, got.Notes)
			}
			if got.Node.ID != node.id || got.Node.KubeletUnit() != node.unit {
				t.Errorf("%s with unit %q; want %s, %q", got.Node.ID, got.Node.KubeletUnit(), node.id, node.unit)
			}
			healthz := "http://127.0.0.1:10248/healthz"
			if node.healthz == "none" {
				healthz = ""
			} else if node.healthz != "" {
				healthz = "http://127.0.0.1:" + node.healthz + "/healthz"
			}
			expect(t, "root", got.Paths.KubeletRoot, node.root, "/var/lib/kubelet")
			expect(t, "kubeconfig", got.Paths.Kubeconfig, node.kubeconfig, "")
			expect(t, "healthz", got.Paths.KubeletHealthz, healthz, "")
			if node.socket != "" {
				expect(t, "socket", got.Paths.CRISocket, node.socket, "")
			}
			if err := got.Doubts.Of(); err != nil {
				t.Errorf("in doubt: %v", err)
			}
		})
	}
	for _, d := range distro.All() {
		if !tested[d.ID] && d.ID != "kubelet-snap" {
			t.Errorf("no dead node of %s is laid out", d.Name)
		}
	}
}

// removeKubelet removes the machine's trace of a kubelet.
func removeKubelet(t *testing.T, root string) {
	t.Helper()
	if err := os.Remove(root + "/usr/bin/kubelet"); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, what, got, want, otherwise string) {
	t.Helper()
	if want == "" {
		want = otherwise
	}
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}

// TestNoKubernetes: other software leaves no trace of a kubelet, and neither does a control plane alone.
func TestNoKubernetes(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing": {},
		"Docker, Podman and a client": {"/etc/containerd/config.toml": "version = 2\n", "/etc/cni/net.d/87-podman.conflist": "{}",
			"/opt/cni/bin/bridge": "ELF", "/usr/bin/kubectl": "ELF", "/etc/systemd/system/containerd.service": "[Service]\n",
			"/usr/local/bin/k3s": "ELF", "/root/.kube/config": "x"},
		"units with such names": {"/etc/systemd/system/k3sup.service": "[Service]\nExecStart=/usr/bin/k3sup\n",
			"/etc/systemd/system/k3s-backup.service":     "[Service]\nExecStart=/usr/bin/restic backup\n",
			"/etc/systemd/system/kube-apiserver.service": "[Service]\nExecStart=/usr/bin/kube-apiserver\n",
			"/etc/systemd/system/kubecost.service":       "[Service]\nExecStart=/usr/bin/kubecost\n"},
		"an empty directory of pods": {"/var/lib/kubelet/pods/": ""},
		"k0s controller": {"/etc/systemd/system/k0scontroller.service": "[Service]\nExecStart=/usr/bin/k0s controller\n",
			"/var/lib/k0s/bin/kube-apiserver": "ELF"},
		"K3s without an agent": {"/etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/bin/k3s server --disable-agent\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			removeKubelet(t, root)
			for file, text := range files {
				if strings.HasSuffix(file, "/") {
					if err := os.MkdirAll(root+file, 0o755); err != nil {
						t.Fatal(err)
					}
					continue
				}
				put(t, root+file, text)
			}
			got, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil || got.KubeletInstalled {
				t.Errorf("installed %v, %v: %q", got.KubeletInstalled, err, got.Notes)
			}
		})
	}
}

// TestLivingKubelets: a kubelet inside another program is found, and its arguments come from its files.
func TestLivingKubelets(t *testing.T) {
	for name, test := range map[string]struct {
		proc  proc
		files map[string]string
		id    string
		want  string // parts of the paths
	}{
		"K3s": {proc{comm: "k3s-server", exe: "/var/lib/rancher/k3s/data/aa/bin/k3s", args: []string{"/usr/local/bin/k3s server"}},
			nil, "k3s", "Kubeconfig:/var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
		"K3s, data elsewhere by its program": {proc{comm: "k3s-agent", exe: "/x/k3s/data/bb/bin/k3s", args: []string{"k3s agent"}},
			map[string]string{"/x/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": kubeletHead + "staticPodPath: /x/static\n"},
			"k3s", "StaticPods:/x/static"},
		"K3s, its kubelet's root elsewhere": {proc{comm: "k3s-server", exe: "/usr/bin/k3s", args: []string{"k3s", "server"}},
			map[string]string{"/etc/rancher/k3s/config.yaml": "kubelet-arg: [\"root-dir=/data/kl\"]\nnode-name: Edge-7\n"},
			"k3s", "KubeletRoot:/data/kl"},
		"MicroK8s": {proc{comm: "kubelite", exe: "/snap/microk8s/77/kubelite", args: []string{"kubelite",
			"--kubelet-args-file=/var/snap/microk8s/77/args/kubelet"}},
			map[string]string{"/var/snap/microk8s/77/args/kubelet": "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n" +
				"--cluster-dns=10.152.183.10\n--healthz-port 10777\n"},
			"microk8s", "KubeletHealthz:http://127.0.0.1:10777/healthz"},
		"KubeEdge": {proc{comm: "edgecore", exe: "/usr/local/bin/edgecore", args: []string{"edgecore"}},
			map[string]string{"/etc/kubeedge/config/edgecore.yaml": "modules: {edged: {tailoredKubeletConfig: {staticPodPath: /e/m}}}\n"},
			"kubeedge", "StaticPods:/e/m"},
	} {
		t.Run(name, func(t *testing.T) {
			root := machine(t)
			removeKubelet(t, root)
			put(t, root+test.proc.exe, "ELF")
			for file, text := range test.files {
				put(t, root+file, text)
			}
			test.proc.write(t, root, 700)
			got, err := discover.Discover(host.Files{Root: root}, host.Paths{})
			if err != nil || !got.KubeletRunning || got.Node.ID != test.id || got.Doubts.Of() != nil {
				t.Fatalf("running %v, %s, %v, doubts %v: %q", got.KubeletRunning, got.Node.ID, err, got.Doubts, got.Notes)
			}
			if text := fmt.Sprintf("%+v", got.Paths); !strings.Contains(text, test.want) {
				t.Errorf("no %s in %s", test.want, text)
			}
		})
	}
}

// TestOtherCommandsOfAProgram: a program of many commands is a node with one of them only.
func TestOtherCommandsOfAProgram(t *testing.T) {
	root := machine(t)
	removeKubelet(t, root)
	put(t, root+"/usr/local/bin/k3s", "ELF")
	proc{comm: "k3s", exe: "/usr/local/bin/k3s", args: []string{"k3s", "kubectl", "get", "pods"}}.write(t, root, 700)
	if got, err := discover.Discover(host.Files{Root: root}, host.Paths{}); err != nil || got.KubeletInstalled {
		t.Errorf("installed %v, %v: %q", got.KubeletInstalled, err, got.Notes)
	}
}
