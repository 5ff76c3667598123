package discover

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestKubeletEviction(t *testing.T) {
	const age = 2 * time.Minute
	defaults := map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%"}
	for name, test := range map[string]struct {
		files map[string]string
		args  []string
		want  KubeletEviction
		bad   bool
	}{
		"defaults": {nil, nil, KubeletEviction{defaults, 85, age}, false},
		"file": {map[string]string{"config.yaml": "evictionHard: {nodefs.available: " +
			"3Gi}\nimageGCHighThresholdPercent: 70\nimageMinimumGCAge: 10m"}, nil, KubeletEviction{map[string]string{"nodefs.available": "3Gi"},
			70, 10 * time.Minute}, false},
		"drop-ins": {map[string]string{"config.yaml": "evictionHard: {nodefs.available: 3Gi}",
			"d/10.conf": "evictionHard: {memory.available: 1Gi}", "d/x": "["}, []string{"kubelet", "--config-dir=/d"},
			KubeletEviction{map[string]string{"nodefs.available": "3Gi", "memory.available": "1Gi"}, 85, age}, false},
		"flag": {map[string]string{"config.yaml": "evictionHard: {nodefs.available: 3Gi}"},
			[]string{"kubelet", "--eviction-hard=imagefs.available<20%, x",
				"--minimum-image-ttl-duration=1h"},
			KubeletEviction{map[string]string{"imagefs.available": "20%"}, 85, time.Hour}, false},
		"K3s": {map[string]string{
			"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf":      "evictionHard: {imagefs.available: 5%, nodefs.available: 5%}",
			"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/20-cli-config-dir/my.conf": "imageGCHighThresholdPercent: 60",
		}, nil, KubeletEviction{map[string]string{"imagefs.available": "5%", "nodefs.available": "5%"}, 60, age}, false},
		"garbage": {map[string]string{"config.yaml": "["}, nil, KubeletEviction{}, true},
		"no dir":  {nil, []string{"kubelet", "--config-dir=/none"}, KubeletEviction{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host.Host{Files: host.Files{Root: t.TempDir()}}
			for file, text := range test.files {
				path := h.Files.Path(file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if file == "config.yaml" {
					h.Paths.KubeletConfig = "/config.yaml"
				}
			}
			h.Kubelet.Process = func() (host.Process, error) {
				if name == "K3s" {
					return host.Process{}, fs.ErrNotExist
				}
				return host.Process{PID: 1, Args: test.args}, nil
			}
			got, err := ReadKubeletEviction(h)
			if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != test.bad {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzParseEviction(f *testing.F) {
	f.Add([]byte("evictionHard: {nodefs.available: 3Gi}\nimageGCHighThresholdPercent: 70"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var e KubeletEviction
		if err := parseEviction(&e, data); err != nil && (e.Hard != nil || e.ImageGCHighPercent != 0) {
			t.Errorf("both %v and %v", e, err)
		}
	})
}
