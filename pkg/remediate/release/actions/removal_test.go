package actions

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/internal/mutate"
)

// tree makes entries of lines: "dir/", "file", "file=" (empty), "link@", "mount!".
func tree(lines ...string) []mutate.Entry {
	entries := []mutate.Entry{{Type: mutate.Directory}}
	for _, line := range lines {
		e := mutate.Entry{Type: mutate.Regular, Size: 1, Path: strings.TrimRight(line, "/=@!")}
		switch line[len(line)-1] {
		case '/':
			e.Type = mutate.Directory
		case '=':
			e.Size = 0
		case '@':
			e.Type = mutate.Other
		case '!':
			e.Type, e.Mount = mutate.Directory, true
		}
		entries = append(entries, e)
	}
	return entries
}

func TestPlanRemoval(t *testing.T) {
	for name, test := range map[string]struct {
		tree    []mutate.Entry
		allow   bool
		want    []string
		refusal string
	}{
		"empty": {tree(), false, []string{"rmdir "}, ""},
		"kubelet's own": {
			tree("containers/", "etc-hosts", "plugins/", "userns", "containers/app/",
				"plugins/kubernetes.io~empty-dir/",
				"containers/app/0a1b", "plugins/kubernetes.io~empty-dir/wrapped_token/",
				"plugins/kubernetes.io~empty-dir/wrapped_token/ready="), false,
			[]string{
				"unlink etc-hosts", "unlink userns", "unlink containers/app/0a1b",
				"unlink plugins/kubernetes.io~empty-dir/wrapped_token/ready",
				"rmdir plugins/kubernetes.io~empty-dir/wrapped_token", "rmdir plugins/kubernetes.io~empty-dir",
				"rmdir containers/app",
				"rmdir plugins", "rmdir containers", "rmdir ",
			}, "",
		},
		"vol_data.json without mount": {
			tree("volumes/", "volumes/kubernetes.io~csi/", "volumes/kubernetes.io~csi/p/",
				"volumes/kubernetes.io~csi/p/vol_data.json"), false,
			[]string{
				"move volumes/kubernetes.io~csi/p/vol_data.json", "rmdir volumes/kubernetes.io~csi/p",
				"rmdir volumes/kubernetes.io~csi",
				"rmdir volumes", "rmdir ",
			}, "",
		},
		"vol_data.json beside data": {
			tree("volumes/", "volumes/kubernetes.io~csi/", "volumes/kubernetes.io~csi/p/",
				"volumes/kubernetes.io~csi/p/vol_data.json",
				"volumes/kubernetes.io~csi/p/mount/", "volumes/kubernetes.io~csi/p/mount/data"), false,
			nil, "is not empty",
		},
		"emptyDir data": {
			tree("volumes/", "volumes/kubernetes.io~empty-dir/", "volumes/kubernetes.io~empty-dir/v/",
				"volumes/kubernetes.io~empty-dir/v/db"), false,
			nil, "user data in an emptyDir",
		},
		"emptyDir data, allowed": {
			tree("volumes/", "volumes/kubernetes.io~empty-dir/", "volumes/kubernetes.io~empty-dir/v/",
				"volumes/kubernetes.io~empty-dir/w/",
				"volumes/kubernetes.io~empty-dir/v/db", "volumes/kubernetes.io~empty-dir/v/link@"), true,
			[]string{
				"move volumes/kubernetes.io~empty-dir/v", "rmdir volumes/kubernetes.io~empty-dir/w",
				"rmdir volumes/kubernetes.io~empty-dir",
				"rmdir volumes", "rmdir ",
			}, "",
		},
		"emptyDir with a mount in it, allowed": {
			tree("volumes/", "volumes/kubernetes.io~empty-dir/", "volumes/kubernetes.io~empty-dir/v/",
				"volumes/kubernetes.io~empty-dir/v/m!"), true,
			nil, "is a mount point",
		},
		"a user's file": {tree("etc-hosts", "notes"), false, nil, "may be user data"},
		"a user's file deep": {tree("containers/", "containers/app/", "containers/app/x/", "containers/app/x/y"),
			false, nil, "may be user data"},
		"a mark with content": {tree("plugins/", "plugins/a/", "plugins/a/b/", "plugins/a/b/ready"), false, nil,
			"may be user data"},
		"a link":  {tree("etc-hosts@"), false, nil, "neither"},
		"a mount": {tree("volumes/", "volumes/x!"), false, nil, "is a mount point"},
		"a subpath placeholder": {tree("volume-subpaths/", "volume-subpaths/v/", "volume-subpaths/v/c/",
			"volume-subpaths/v/c/0="), false, []string{"unlink volume-subpaths/v/c/0", "rmdir volume-subpaths/v/c",
			"rmdir volume-subpaths/v", "rmdir volume-subpaths", "rmdir "}, ""},
		"a subpath's data": {tree("volume-subpaths/", "volume-subpaths/v/", "volume-subpaths/v/c/",
			"volume-subpaths/v/c/0"), false, nil, "may be user data"},
	} {
		t.Run(name, func(t *testing.T) {
			steps, refusal := planRemoval(test.tree, test.allow)
			var got []string
			for _, s := range steps {
				got = append(got, map[removalKind]string{removeDir: "rmdir ", unlink: "unlink ",
					moveAway: "move "}[s.kind]+s.entry.Path)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || !strings.Contains(refusal, test.refusal) ||
				(refusal == "") != (test.refusal == "") {
				t.Errorf("refusal %q, steps %s", refusal, diff)
			}
		})
	}
}

// Whatever a directory contains, no file with content outside the allow-list is unlinked, and a refusal is whole.
func TestPlanRemovalProperties(t *testing.T) {
	part := rapid.SampledFrom([]string{"volumes", "containers", "plugins", "kubernetes.io~csi",
		"kubernetes.io~empty-dir", "a", "ready", "etc-hosts", "vol_data.json", "mount"})
	rapid.Check(t, func(t *rapid.T) {
		entries := tree()
		for i := range rapid.IntRange(0, 12).Draw(t, "n") {
			e := mutate.Entry{
				Path: strings.Join(rapid.SliceOfN(part, 1, 5).Draw(t, "path"), "/") + fmt.Sprint(i%3),
				Type: rapid.SampledFrom([]mutate.EntryType{mutate.Directory, mutate.Regular, mutate.Other}).Draw(t,
					"type"),
				Size: rapid.Uint64Range(0, 1).Draw(t, "size"), Mount: rapid.Bool().Draw(t, "mount"),
			}
			entries = append(entries, e)
		}
		steps, refusal := planRemoval(entries, rapid.Bool().Draw(t, "allow"))
		if refusal != "" && len(steps) > 0 {
			t.Fatal("steps beside a refusal")
		}
		for _, s := range steps {
			if s.entry.Mount || s.kind == unlink && s.entry.Type != mutate.Regular || s.kind == removeDir &&
				s.entry.Type != mutate.Directory {
				t.Fatalf("%+v", s)
			}
			if s.kind == unlink && strings.HasPrefix(s.entry.Path, "volumes/") {
				t.Fatalf("a volume's file is unlinked: %+v", s)
			}
		}
	})
}

// A volume mapped as a device, in any form, keeps the directory.
func TestPlanRemovalBlockVolume(t *testing.T) {
	for _, entry := range []string{"volumeDevices/kubernetes.io~csi/pvc-1/", "volumeDevices/kubernetes.io~csi/pvc-1=",
		"volumeDevices/kubernetes.io~csi/pvc-1@"} {
		steps, refusal := planRemoval(tree("volumeDevices/", "volumeDevices/kubernetes.io~csi/", entry), true)
		if len(steps) > 0 || !strings.Contains(refusal, "block volume is still mapped") {
			t.Errorf("%s: %q, %v", entry, refusal, steps)
		}
	}
	if steps, refusal := planRemoval(tree("volumeDevices/", "volumeDevices/kubernetes.io~csi/"), true); refusal != "" ||
		len(steps) != 3 {
		t.Errorf("empty: %q, %v", refusal, steps)
	}
}
