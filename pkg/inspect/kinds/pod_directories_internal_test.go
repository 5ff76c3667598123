package kinds

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// A record left in a pod's directory is found, unless finding it would open a mount or follow a link.
func TestVolumeRecord(t *testing.T) {
	const dir = "/var/lib/kubelet/pods/" + inspecttest.Dead
	const volume = dir + "/volumes/kubernetes.io~csi/pvc-1"
	for name, test := range map[string]struct {
		file    string
		link    bool // the volume's directory is a link
		mounted string
		want    string
	}{
		"left": {file: "vol_data.json", want: volume + "/vol_data.json"},
		"left beside a mount": {file: "vol_data.json", mounted: volume + "/mount",
			want: volume + "/vol_data.json"},
		"another file":               {file: "mount"},
		"below a mounted volume":     {file: "vol_data.json", mounted: volume},
		"below a mounted directory":  {file: "vol_data.json", mounted: dir + "/volumes"},
		"below a mounted driver's":   {file: "vol_data.json", mounted: filepath.Dir(volume)},
		"below a mount of the pod's": {file: "vol_data.json", mounted: dir},
		"through a link":             {file: "vol_data.json", link: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Host(t)
			inside := h.Files.Path(volume)
			target := inside
			if test.link {
				target = t.TempDir()
			}
			for _, err := range []error{os.MkdirAll(filepath.Dir(inside), 0o755), os.MkdirAll(target, 0o755),
				os.WriteFile(filepath.Join(target, test.file), nil, 0o600)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if test.link {
				if err := os.Symlink(target, inside); err != nil {
					t.Fatal(err)
				}
			}
			scan := &hostscan.Scan{Host: h, Mounts: func() ([]mount.Mount, error) {
				return []mount.Mount{{Point: test.mounted}}, nil
			}}
			o := object.Object{Kind: object.PodDirectory, ID: dir, Pod: object.Pod{UID: inspecttest.Dead}}
			explainPodDirectories(scan, []*object.Object{&o})
			if got := o.Facts["volumeRecord"]; got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
