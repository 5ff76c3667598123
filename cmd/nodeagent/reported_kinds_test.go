package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The program lists the mount that a pod left outside of kubelet's directory and the files of a dead container in /run. Without
// witnesses they are unknown, so no leftovers. It never releases them, whoever asks, and says why; they stay.
func TestReportedKindsStay(t *testing.T) {
	const uid = "3c9d2a54-7c1e-4e5b-9b5a-0123456789ab"
	d := newBadDay(t)
	container, state := strings.Repeat("4", 64), filepath.Join(d.dir, "containerd")
	volume := filepath.Join(d.dir, "kubelet", "pods", uid, "volumes", "kubernetes.io~empty-dir", "cache")
	point, other := filepath.Join(d.dir, "srv", "export"), filepath.Join(d.dir, "srv", "own")
	fifos := filepath.Join(state, "io.containerd.grpc.v1.cri", "containers", container)
	for _, dir := range []string{volume, point, other, fifos, filepath.Join(filepath.Dir(fifos), "no-container"),
		filepath.Join(d.dir, "mine")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range map[string]string{volume: point, filepath.Join(d.dir, "mine"): other} {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(to, unix.UMOUNT_NOFOLLOW); err != nil {
				t.Error(err)
			}
		})
	}
	text, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, d.config, string(text)+"nodeName: n1\npaths: {kubeletRoot: "+filepath.Join(d.dir, "kubelet")+", containerdState: "+state+"}\n")

	want := map[object.Kind]string{object.HostMount: point + "#", object.RunFile: fifos}
	for kind, id := range want {
		objects := d.objects(string(kind))
		if len(objects) != 1 || !strings.HasPrefix(objects[0].ID, id) || objects[0].Verdict != object.Unknown {
			t.Errorf("%s: %+v", kind, objects)
		}
		ask(t, d.command("clean", "--yes", "--only", string(kind))).expect(t, soon, []int{exitCouldNotTell},
			string(kind)+": objects of this kind are reported only: "+kinds.Of(kind).ReportOnly)
		ask(t, d.command("inspect", "--explain", string(kind)+"/"+id)).expect(t, soon, []int{exitCouldNotTell},
			"only leftovers are released")
	}
	ask(t, d.command("clean", "--yes", "--only", string(object.DetachedVolume))).expect(t, soon, []int{exitCouldNotTell},
		kinds.Of(object.DetachedVolume).ReportOnly)
	ask(t, d.command("clean", "--yes", "--pod", uid)).expect(t, soon, []int{exitCouldNotTell}, "kubelet could not be heard")
	for kind := range want {
		if objects := d.objects(string(kind)); len(objects) != 1 {
			t.Errorf("%s after clean: %+v", kind, objects)
		}
	}
}

// objects returns what the program lists of one kind below the installation's directory.
func (d *badDay) objects(kind string) []object.Assessment {
	d.t.Helper()
	out, _ := d.command("inspect", "-o", "json", kind).Output() // its exit code is 2 while an object is unknown
	var report struct{ Objects []object.Assessment }
	if err := json.Unmarshal(out, &report); err != nil {
		d.t.Fatalf("%v: %s", err, out)
	}
	var here []object.Assessment
	for _, o := range report.Objects {
		if strings.HasPrefix(o.ID, d.dir) {
			here = append(here, o)
		}
	}
	return here
}
