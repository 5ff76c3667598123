package inside

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// configure writes to files of a folder of the kernel's configfs, in this order: name, text, name, text.
func configure(t *testing.T, dir string, words ...string) {
	t.Helper()
	run(t, "mkdir", "-p", dir)
	for i := 0; i < len(words); i += 2 {
		put(t, filepath.Join(dir, words[i]), words[i+1])
	}
}

// configured is done once in each guest.
var configured sync.Once

// configfs is the folder to configure the kernel's disk servers.
func configfs(t *testing.T) string {
	t.Helper()
	const dir = "/sys/kernel/config"
	run(t, "modprobe", "configfs")
	configured.Do(func() { run(t, "mount", "-t", "configfs", "configfs", dir) })
	return dir
}

const nvmeTCP = "nqn.2014-08.test:disk"

// ways exports a RAM disk by two NVMe/TCP servers, connects to both, and returns the disk with the two paths.
func ways(t *testing.T) (disk string, servers []server) {
	t.Helper()
	run(t, "modprobe", "nvme-core", "io_timeout=4294967") // the same as in nvme
	for _, module := range []string{"nvmet", "nvmet-tcp", "nvme-tcp"} {
		run(t, "modprobe", module)
	}
	ram(t)
	dir := configfs(t) + "/nvmet"
	subsystem := dir + "/subsystems/" + nvmeTCP
	configure(t, subsystem, "attr_allow_any_host", "1")
	configure(t, subsystem+"/namespaces/1", "device_path", "/dev/ram11", "enable", "1")
	for i := range 2 {
		s := connect(t, fmt.Sprintf("nvme-tcp%d", i), 5+i)
		port := fmt.Sprintf("%s/ports/%d", dir, i+1)
		configure(t, port, "addr_trtype", "tcp", "addr_adrfam", "ipv4", "addr_traddr", s.address, "addr_trsvcid",
			"4420")
		s.shell(fmt.Sprintf("ln -s %s %s/subsystems/", subsystem, port))
		t.Cleanup(func() { run(t, "rm", port+"/subsystems/"+nvmeTCP) })
		put(t, "/dev/nvme-fabrics",
			fmt.Sprintf(
				"transport=tcp,traddr=%s,trsvcid=4420,nqn=%s,hostnqn=nqn.2014-08.test:guest,reconnect_delay=2,keep_alive_tmo=5", s.address, nvmeTCP))
		servers = append(servers, s)
	}
	t.Cleanup(func() {
		for _, file := range ofSubsystem("nvme*/delete_controller") {
			put(t, file, "1")
		}
	})
	eventually(t, "disk", func() bool {
		disks := ofSubsystem("nvme*n1")
		if len(disks) == 1 {
			disk = filepath.Base(disks[0])
		}
		return disk != "" && exists("/dev/"+disk)
	})
	return disk, servers
}

// ofSubsystem returns the files of the subsystem in the kernel's table that match a pattern.
func ofSubsystem(pattern string) []string {
	names, _ := filepath.Glob("/sys/class/nvme-subsystem/*/subsysnqn")
	for _, file := range names {
		if read(file) == nvmeTCP {
			files, _ := filepath.Glob(filepath.Join(filepath.Dir(file), pattern))
			return files
		}
	}
	return nil
}

// TestNVMeOverTCP: a disk has two paths; one is cut, and then the other one.
func TestNVMeOverTCP(t *testing.T) {
	a := watch(t)
	disk, servers := ways(t)
	read := func(block int) *exec.Cmd {
		return exec.Command("dd", "if=/dev/"+disk, "of=/dev/null", "bs=4096", "count=1", fmt.Sprintf("skip=%d", block),
			"iflag=direct")
	}
	servers[0].cable(false)
	a.awaitReason("multipath", "MultipathDegraded", disk, true)
	if out, err := read(0).CombinedOutput(); err != nil {
		t.Errorf("one way is left: %v: %s", err, out)
	}
	servers[1].cable(false)
	reader := read(8)
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitReason("multipath", "MultipathNoPath", disk, true)
	for _, s := range servers {
		s.cable(true)
	}
	a.awaitReason("multipath", "", disk, false)
	if err := reader.Wait(); err != nil {
		t.Errorf("what waited for a way failed: %v", err)
	}
	expectReplay(t, "NVMeConnectionLost: device/", "recovered in line")
	expectReplay(t, "NVMeNoPath: device/"+disk, "")
}
