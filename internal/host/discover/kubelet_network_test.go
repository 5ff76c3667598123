package discover_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

func TestKubeletNetwork(t *testing.T) {
	const head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"
	const config, dropIn = "/etc/k/config.yaml", "/etc/k/conf.d/10.conf"
	running := func(args ...string) func() (host.Process, error) {
		return func() (host.Process, error) { return host.Process{PID: 7, StartTime: 1, Args: args}, nil }
	}
	tests := []struct {
		name    string
		files   map[string]string
		process func() (host.Process, error)
		want    discover.KubeletNetwork
		err     error // errors.ErrUnsupported: any
	}{
		{name: "none", err: hosterr.ErrNotConfigured},
		{
			name: "kubeadm's, none runs", files: map[string]string{"/var/lib/kubelet/config.yaml": head +
				"clusterDNS: [10.96.0.10]\nclusterDomain: cluster.local.\n"},
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local",
				ResolvConf: "/etc/resolv.conf"},
		},
		{
			name: "flags", process: running("kubelet", "--cluster-dns=10.0.0.10,fd00::a", "--cluster-domain", "c",
				"--resolv-conf="),
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.0.0.10", "fd00::a"}, ClusterDomain: "c"},
		},
		{
			name: "file, drop-in and flag", process: running("kubelet", "--config="+config,
				"--config-dir=/etc/k/conf.d", "--cluster-domain=flag"),
			files: map[string]string{
				config: head + "clusterDNS: [10.0.0.1, 10.0.0.2]\nclusterDomain: file\nresolvConf: /run/r\n",
				dropIn: head + "clusterDNS: [10.0.0.3]\nclusterDomain: drop-in\n",
			},
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.0.0.3"}, ClusterDomain: "flag",
				ResolvConf: "/run/r"},
		},
		{
			name:    "drop-ins in folders, in the order of names",
			process: running("kubelet", "--config-dir=/etc/k/conf.d"),
			files: map[string]string{
				dropIn: head + "clusterDNS: [10.0.0.3]\nclusterDomain: ten\n", "/etc/k/conf.d/20-cli/extra.conf": head +
					"clusterDomain: twenty\n",
				"/etc/k/conf.d/05/x.conf": head + "clusterDNS: [10.0.0.9]\n", "/etc/k/conf.d/99.yaml": "[",
			},
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.0.0.3"}, ClusterDomain: "twenty",
				ResolvConf: "/etc/resolv.conf"},
		},
		{
			name: "K3s", files: map[string]string{
				"/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": head +
					"clusterDNS: [10.43.0.10]\nclusterDomain: cluster.local\nresolvConf: /etc/k3s-resolv.conf\n",
				"/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/20-cli-config-dir/mine.conf": head +
					"clusterDomain: mine.local\n",
			},
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.43.0.10"}, ClusterDomain: "mine.local",
				ResolvConf: "/etc/k3s-resolv.conf"},
		},
		{
			name: "MicroK8s", files: map[string]string{
				"/var/snap/microk8s/current/args/kubelet": "# of the snap\n--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--eviction-hard=\"memory.available<100Mi\"\n--cluster-domain=cluster.local\n--cluster-dns=10.152.183.10\n--resolv-conf=${SNAP_DATA}/resolv\n",
			},
			want: discover.KubeletNetwork{ClusterDNS: []string{"10.152.183.10"}, ClusterDomain: "cluster.local",
				ResolvConf: "/var/snap/microk8s/current/resolv"},
		},
		{name: "a drop-in that is malformed", process: running("kubelet", "--config="+config,
			"--config-dir=/etc/k/conf.d"), files: map[string]string{config: head, dropIn: "clusterDNS: [\n"},
			err: errors.ErrUnsupported},
		{name: "K3s, not ours",
			files: map[string]string{"/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": "kind: [\n"},
			err:   errors.ErrUnsupported},
		{name: "malformed", process: running("kubelet", "--config="+config),
			files: map[string]string{config: "kind: [\n"}, err: errors.ErrUnsupported},
		{name: "gone", process: running("kubelet", "--config="+config), err: errors.ErrUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &host.Host{Files: host.Files{Root: t.TempDir()}, Kubelet: host.Kubelet{Process: tt.process}}
			for name, text := range tt.files {
				path := h.Files.Path(name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := discover.ReadKubeletNetwork(h)
			if (err != nil) != (tt.err != nil) || tt.err != nil && !errors.Is(tt.err, errors.ErrUnsupported) &&
				!errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
