package kinds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Only a device with the name of its volume is listed, with the one pod whose volume it is.
func TestBlockDevices(t *testing.T) {
	const claim = "pvc-33333333-3333-4333-8333-333333333333"
	pods := "/var/lib/kubelet/pods/"
	scan := MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 7:4 / /mnt rw shared:1 - ext4 /dev/loop4 rw
3 1 253:1 / PODS/LIVE/volumes/kubernetes.io~csi/`+claim+`/mount rw shared:1 - ext4 /dev/dm-1 rw
`)
	for name, text := range map[string]string{
		"loop0/loop/backing_file": "/home/admin/disk.img",
		"loop1/loop/backing_file": "",
		"loop2/loop/backing_file": pods + MountsDead + "/volumes/v/disk (deleted)",
		"loop3/loop/backing_file": "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/" + MountsDead,
		"loop4/loop/backing_file": pods + MountsDead + "/volumes/v/mounted",
		"loop5/loop/backing_file": "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-2/x\xff",
		"loop6/loop/backing_file": "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-live",
		"loop7/loop/backing_file": pods + MountsDead + "/volumes/v/held",
		"loop7/holders/dm-9":      "",
		"loop8/loop/backing_file": pods + MountsDead + "/volumes/v/swap",
		"loop9/dev":               "7:9",
		"dm-0/dm/uuid":            "LVM-abc",
		"dm-0/dm/name":            "vg-" + claim,
		"dm-1/dm/uuid":            "CRYPT-LUKS2-abc-" + claim,
		"dm-1/dm/name":            "crypt_" + claim,
		"dm-2/dm/uuid":            "CRYPT-LUKS2-root",
		"dm-2/dm/name":            "root",
		"dm-3/dm/uuid":            "CRYPT-LUKS1-abc",
		"dm-3/dm/name":            strings.ReplaceAll(claim, "3", "4"),
		"/proc/swaps":             "Filename Type Size Used Priority\n/dev/loop8 partition 1 0 -2\n",
		"sda/dev":                 "8:0",
		pods + MountsLiving + "/volumeDevices/kubernetes.io~csi/pv-live": "",
	} {
		if !filepath.IsAbs(name) {
			name = "/sys/block/" + name
		}
		name = scan.Host.Files.Path(name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for device, number := range map[string]string{"loop1": "7:1", "loop2": "7:2", "loop3": "7:3", "loop4": "7:4",
		"loop5": "7:5", "loop6": "7:6", "loop7": "7:7", "loop8": "7:8", "dm-1": "253:1", "dm-3": "253:3"} {
		if err := os.WriteFile(scan.Host.Files.Path("/sys/block/"+device+"/dev"), []byte(number+"\n"),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := listBlockDevices(t.Context(), scan)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range objects {
		got[o.ID] = o.Pod.UID + o.InUse
	}
	want := map[string]string{"/dev/loop2": MountsDead, "/dev/loop3": MountsDead,
		"/dev/loop4": "it is used by /mnt",
		"/dev/loop5": "", "/dev/loop6": MountsLiving, "/dev/loop7": "it is used by /dev/dm-9",
		"/dev/loop8": "it is used by swap", "/dev/dm-1": MountsLiving, "/dev/dm-3": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// If the volumes of a pod cannot be read, a device may be one of them.
func TestBlockDeviceBesideUnreadVolumes(t *testing.T) {
	const claim = "pvc-33333333-3333-4333-8333-333333333333"
	scan := MountScan(t, "1 0 8:1 / / rw - ext4 /dev/sda rw\n")
	for name, text := range map[string]string{"/sys/block/dm-0/dm/uuid": "CRYPT-LUKS2-abc-" + claim,
		"/sys/block/dm-0/dm/name": claim, "/sys/block/dm-0/dev": "253:0", "/proc/swaps": "",
		"/var/lib/kubelet/pods/" + MountsLiving + "/volumes/other": ""} {
		name = scan.Host.Files.Path(name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		hosttest.Write(t, "/", name, text)
	}
	list := func() object.Object {
		t.Helper()
		objects, err := listBlockDevices(t.Context(), scan)
		if err != nil || len(objects) != 1 {
			t.Fatal(objects, err)
		}
		return objects[0]
	}
	if o := list(); o.Doubt != "" || o.InUse != "" || o.Pod.UID != "" {
		t.Errorf("all could be read: %+v", o)
	}
	link := "/var/lib/kubelet/pods/" + MountsLiving + "/volumes/kubernetes.io~csi"
	if err := os.Symlink("/", scan.Host.Files.Path(link)); err != nil {
		t.Fatal(err)
	}
	if o := list(); o.Doubt == "" {
		t.Errorf("volumes of a pod were not read: %+v", o)
	}
}
