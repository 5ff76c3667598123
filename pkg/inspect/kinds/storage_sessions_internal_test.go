package kinds

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

const claims = "pvc-0000000%-3333-4333-8333-333333333333"

func claim(n string) string { return claims[:11] + n + claims[12:] }

// A session is a pod's by its mount or by the directory of the volume that its target names; one of an unused volume is
// unowned, and others are not listed. The layout is that of drivers/scsi/scsi_transport_iscsi.c,
// drivers/nvme/host/sysfs.c and Documentation/ABI/testing/sysfs-block.
func TestStorageSessions(t *testing.T) {
	scan := MountScan(t, `1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 253:0 / PODS/LIVE/volumes/kubernetes.io~csi/x/mount rw shared:1 - ext4 /dev/mapper/mpatha rw
3 1 259:4 / /mnt rw shared:1 - ext4 /dev/nvme4n1 rw
4 1 0:5 /nvme5n1 /var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/x rw shared:1 - devtmpfs udev rw
`)
	write := func(name, text string) {
		t.Helper()
		name = scan.Host.Files.Path(name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	disk := func(name, number string) {
		write("/sys/class/block/"+name+"/dev", number+"\n")
		write("/sys/class/block/"+name+"/size", "2048\n")
	}
	iscsi := func(session, target string, disks ...string) {
		dir := "/sys/class/iscsi_session/" + session
		write(dir+"/targetname", target+"\n")
		write(dir+"/state", "LOGGED_IN\n")
		write(dir+"/device/power/async", "")
		for _, d := range disks {
			write(dir+"/device/target2:0:0/2:0:0:0/block/"+d+"/dev", "")
		}
	}
	nvme := func(name, transport, nqn string, disks ...string) {
		dir := "/sys/class/nvme/" + name
		write(dir+"/transport", transport+"\n")
		write(dir+"/subsysnqn", nqn+"\n")
		write(dir+"/state", "live\n")
		for _, d := range disks {
			write(dir+"/"+d+"/size", "")
		}
	}
	iscsi("session1", "iqn.2019-10.example:"+claim("1"), "sdb") // mounted in a pod, through a multipath device
	disk("sdb", "8:16")
	write("/sys/class/block/sdb/holders/dm-0", "")
	disk("dm-0", "253:0")
	write("/sys/class/block/dm-0/dm/uuid", "mpath-3600\n")
	iscsi("session2", "iqn.2019-10.example:"+claim("2"), "sdc") // unowned, with a partition
	disk("sdc", "8:32")
	disk("sdc1", "8:33")
	write("/sys/class/block/sdc/sdc1/partition", "1")
	iscsi("session3", "iqn.2019-10.example:"+claim("3")) // of a pod's directory, without any disk
	iscsi("session4", "iqn.2001-05.example:backup", "sdd")
	iscsi("session5", "iqn.2019-10.example:"+claim("8"), "sde") // a volume group is on it
	disk("sde", "8:64")
	write("/sys/class/block/sde/holders/dm-1", "")
	disk("dm-1", "253:1")
	write("/sys/class/block/dm-1/dm/uuid", "LVM-abc\n")
	write("/var/lib/kubelet/pods/"+MountsDead+"/volumeDevices/kubernetes.io~csi/"+claim("3"), "")
	nvme("nvme0", "pcie", "nqn.2014-08.com.example:"+claim("9"), "nvme0n1")
	nvme("nvme4", "tcp", "nqn.2014-08.com.example:"+claim("4"), "nvme4c4n1", "hwmon1") // mounted by an administrator
	disk("nvme4n1", "259:4")
	nvme("nvme5", "tcp", "nqn.2014-08.com.example:"+claim("5"), "nvme5n1") // its device file is mounted
	disk("nvme5n1", "259:5")
	nvme("nvme6", "tcp", "nqn.2014-08.com.example:"+claim("6"))
	objects, err := listStorageSessions(t.Context(), scan)
	if err != nil {
		t.Fatal(err)
	}
	got, devices := map[string]string{}, map[string]string{}
	for _, o := range objects {
		got[filepath.Base(o.ID)] = o.Pod.UID + o.InUse
		devices[filepath.Base(o.ID)] = o.Facts["devices"]
	}
	want := map[string]string{"session1": MountsLiving, "session2": "", "session3": MountsDead,
		"session5": "it is used by /dev/dm-1", "nvme4": "it is used by /mnt",
		"nvme5": "it is used by /var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/x", "nvme6": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if devices["session1"] != "sdb dm-0" || devices["session2"] != "sdc sdc1" || devices["nvme4"] != "nvme4n1" {
		t.Errorf("%v", devices)
	}
}

// The session of a volume that the Node has in use is live, and one of an unused volume is reported as unused.
func TestStorageSessionInUse(t *testing.T) {
	inventory := witness.Inventory{}
	inventory.Cluster.VolumesInUse = []string{"kubernetes.io/csi/d.example.com^" + claim("1")}
	for _, spec := range Specs() {
		if spec.Kind != object.StorageSession {
			continue
		}
		for n, used := range map[string]bool{"1": true, "2": false} {
			o := object.Object{Kind: spec.Kind, Facts: object.Facts("volume", claim(n))}
			if why := spec.InUse(&inventory, &o); (why != "") != used {
				t.Errorf("%s: %q", claim(n), why)
			}
		}
	}
}

// A node without such storage has none, and a session that ends meanwhile is no error.
func TestNoStorageSessions(t *testing.T) {
	scan := MountScan(t, "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n")
	if err := os.MkdirAll(scan.Host.Files.Path("/sys/class/iscsi_session/session1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if objects, err := listStorageSessions(t.Context(), scan); len(objects) != 0 || err != nil {
		t.Errorf("%v, %v", objects, err)
	}
	scan.Host.Files = host.Files{Root: t.TempDir()}
	if objects, err := listStorageSessions(t.Context(), scan); len(objects) != 0 || err != nil {
		t.Errorf("%v, %v", objects, err)
	}
}
