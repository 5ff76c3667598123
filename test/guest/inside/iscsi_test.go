package inside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// iscsiTarget is the kernel's iSCSI server in a network namespace, with one disk.
func iscsiTarget(t *testing.T, name string, number int, iqn, disk string) server {
	t.Helper()
	for _, module := range []string{"iscsi_target_mod", "target_core_iblock"} {
		run(t, "modprobe", module)
	}
	s := connect(t, name, number)
	dir := configfs(t) + "/target"
	store := dir + "/core/iblock_0/" + name
	configure(t, store, "control", "udev_path=/dev/"+disk, "enable", "1")
	group := dir + "/iscsi/" + iqn + "/tpgt_1"
	configure(t, group, "attrib/authentication", "0", "attrib/generate_node_acls", "1",
		"attrib/demo_mode_write_protect", "0", "attrib/cache_dynamic_acls", "1")
	s.shell(fmt.Sprintf("mkdir %[1]s/np/%[2]s:3260 %[1]s/lun/lun_0; ln -s %[3]s %[1]s/lun/lun_0/disk; echo 1 "+
		">%[1]s/enable", group, s.address, store))
	t.Cleanup(func() {
		s.shell(fmt.Sprintf(
			"echo 0 >%[1]s/enable; rm %[1]s/lun/lun_0/disk; rmdir %[1]s/lun/lun_0 %[1]s/np/* %[1]s %[2]s %[3]s", group,
			filepath.Dir(group), store))
	})
	return s
}

// initiate starts the initiator, logs in to the target, and returns its disk. A lost session is noticed within four
// seconds, and its disk given up after five.
func initiate(t *testing.T, s server, iqn string) (disk string) {
	t.Helper()
	run(t, "modprobe", "sd_mod")
	run(t, "modprobe", "iscsi_tcp")
	run(t, "mkdir", "-p", "/etc/iscsi", "/run/lock/iscsi")
	for file, text := range map[string]string{"initiatorname.iscsi": "InitiatorName=iqn.1993-08.org.test:guest\n",
		"iscsid.conf": "node.startup = manual\n"} {
		if err := os.WriteFile("/etc/iscsi/"+file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	daemon := unpacked("sbin/iscsid", "-f")
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	admin := func(args ...string) {
		t.Helper()
		out, err := unpacked("sbin/iscsiadm", append([]string{"-m", "node", "-T", iqn, "-p", s.address + ":3260,1"},
			args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("iscsiadm %q: %v: %s", args, err, out)
		}
	}
	admin("-o", "new")
	for name, value := range map[string]string{"node.session.timeo.replacement_timeout": "5",
		"node.conn[0].timeo.noop_out_interval": "2", "node.conn[0].timeo.noop_out_timeout": "2"} {
		admin("-o", "update", "-n", name, "-v", value)
	}
	admin("--login")
	t.Cleanup(func() { admin("--logout") })
	eventually(t, "iSCSI disk", func() bool {
		found, _ := filepath.Glob("/sys/class/iscsi_session/session*/device/target*/*/block/*")
		if len(found) == 1 {
			disk = filepath.Base(found[0])
		}
		return disk != "" && exists("/dev/"+disk)
	})
	return disk
}

// TestISCSISession: the session of an iSCSI disk is lost for longer than the timeout of the disk, and comes back. The
// disk is the volume of a pod that has mounted it by a multipath device, and has no user after the unmount.
func TestISCSISession(t *testing.T) {
	a := watch(t)
	ram(t)
	const claim = "pvc-53333333-3333-4333-8333-333333333333"
	const iqn = "iqn.2003-01.org.test:" + claim
	s := iscsiTarget(t, "iscsi", 8, iqn, "ram12")
	disk := initiate(t, s, iqn)
	s.cable(false)
	a.awaitReason("scsi-device-state", "DiskOffline", disk, true)
	if out, err := exec.Command("dd", "if=/dev/"+disk, "of=/dev/null", "bs=4096", "count=1",
		"iflag=direct").CombinedOutput(); err == nil {
		t.Errorf("the disk was read: %s", out)
	}
	expectReplay(t, "ISCSIConnectionLost: connection/", "")
	s.cable(true)
	a.awaitReason("scsi-device-state", "", disk, false)

	run(t, "modprobe", "dm-multipath")
	run(t, "modprobe", "dm-round-robin")
	above := mapped(t, "mpathvolume", fmt.Sprintf("0 %s multipath 0 0 1 1 round-robin 0 1 1 %s 1",
		read("/sys/block/"+disk+"/size"), device(disk)), "--uuid", "mpath-3600a0b8000volume")
	run(t, "mkfs.ext4", "-q", "-F", "/dev/"+above)
	n := inspecttest.NewNode(t)
	pass := inspector(t, n)
	verdict := func() (told string) {
		for _, o := range pass().Objects {
			if o.Kind == object.StorageSession {
				told += fmt.Sprintf("%s of %q on %s", o.Verdict, o.Pod.UID, o.Facts["devices"])
			}
		}
		return told
	}
	t.Run("mounted", func(t *testing.T) {
		dir := n.PodDir(inspecttest.Living, "volumes/kubernetes.io~csi", claim, "mount")
		if err := unix.Mount("/dev/"+above, dir, "ext4", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer run(t, "umount", dir)
		if got, want := verdict(), fmt.Sprintf("live of %q on %s %s", inspecttest.Living, disk, above); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
	run(t, "rm", "-r", n.Host.Paths.KubeletRoot+"/pods/"+inspecttest.Living+"/volumes")
	if got, want := verdict(), fmt.Sprintf(`unowned of "" on %s %s`, disk, above); got != want {
		t.Errorf("unmounted: %s, want %s", got, want)
	}
}
