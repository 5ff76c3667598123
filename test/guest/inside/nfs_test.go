package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// nfsServer is the kernel's NFS server in a network namespace.
type nfsServer struct {
	server
	control  string // folder of its control files; their mount keeps it alive
	exported string
}

// nfsd starts a server. mountd(8)'s answers to the kernel, about who may mount which directory, are written in advance.
// fs/nfsd/{nfsctl,export}.c, net/sunrpc/svcauth_unix.c
func nfsd(t *testing.T, name string, number int) nfsServer {
	t.Helper()
	run(t, "modprobe", "nfsd")
	run(t, "modprobe", "nfsv4")
	s := nfsServer{connect(t, name, number), t.TempDir(), t.TempDir()}
	run(t, "mount", "-t", "tmpfs", "export", s.exported) // it outlives the export
	t.Cleanup(func() { _ = syscall.Unmount(s.exported, syscall.MNT_DETACH) })
	s.shell("mount -t nfsd nfsd " + s.control)
	t.Cleanup(func() { _ = syscall.Unmount(s.control, 0) })
	for file, text := range map[string]string{"versions": "-3 +4 +4.1 +4.2", "nfsv4leasetime": "10",
		"nfsv4gracetime": "10"} {
		put(t, s.control+"/"+file, text+"\n")
	}
	s.start()
	return s
}

// start starts the server, which knows no client then.
func (s nfsServer) start() {
	s.t.Helper()
	s.shell("echo tcp 2049 >" + s.control + "/portlist")
	s.export()
	put(s.t, s.control+"/threads", "2\n")
}

// stop stops the server: connections to it are refused.
func (s nfsServer) stop() {
	s.t.Helper()
	put(s.t, s.control+"/threads", "0\n")
}

// export lets the guest mount a directory, as the root of its view.
func (s nfsServer) export() {
	s.t.Helper()
	const (
		expiry = 1<<31 - 1
		flags  = 0x2000 | 0x0400 | 0x0010 | 0x0004 | 0x0002 // fsid=0, no_subtree_check, async, root_squash, insecure
	)
	s.shell(fmt.Sprintf(`cd /proc/net/rpc
		printf '%%s\n' 'nfsd %[1]s %[2]d guest' >auth.unix.ip/channel
		printf '%%s\n' 'guest %[3]s %[2]d %[4]d 65534 65534 0' >nfsd.export/channel
		printf '%%s\n' 'guest 1 \x00000000 %[2]d %[3]s' >nfsd.fh/channel`, s.own, expiry, s.exported, flags))
}

// unexport withdraws the export from its clients.
func (s nfsServer) unexport() {
	s.t.Helper()
	s.shell(fmt.Sprintf(`cd /proc/net/rpc
		printf '%%s\n' 'guest 1 \x00000000 %[1]d' >nfsd.fh/channel
		printf '%%s\n' 'guest %[2]s %[1]d' >nfsd.export/channel`, 1<<31-1, s.exported))
}

// mountNFS mounts the server's export like mount.nfs(8).
func mountNFS(t *testing.T, s nfsServer, dir, options string) {
	t.Helper()
	run(t, "mkdir", "-p", dir)
	run(t, "mount", "-i", "-t", "nfs4", "-o", fmt.Sprintf("vers=4.2,addr=%s,clientaddr=%s,%s", s.address, s.own,
		options), s.address+":/", dir)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH) })
}

// TestNFSServerGone: the server of a pod's volume no longer answers, and comes back. Meanwhile the agent finds the
// faults of other tests, which run in parallel.
func TestNFSServerGone(t *testing.T) {
	a := watch(t)
	s := nfsd(t, "nfs-gone", 1)
	const uid = "0ff1ce00-1111-4222-8333-444455556666"
	const dir = "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~nfs/data"
	mountNFS(t, s, dir, "hard,timeo=50,retrans=1")
	s.cable(false)
	program := exec.Command("stat", "-f", dir)
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	a.awaitFound("hung-mounts", func(f believed) bool {
		return f.Reason == "MountHung" && f.Subject.Name == dir && strings.Contains(f.Message, uid)
	}, true)
	expectReplay(t, "NFSServerNotResponding: nfs-server/"+s.address, "line ")
	began := time.Now()
	// its exit code depends on the findings
	out, _ := exec.Command(*binary, "check", "--config", a.config).CombinedOutput()
	t.Logf("nodeagent check ended after %s", time.Since(began).Round(time.Second/10))
	if took := time.Since(began); took > 30*time.Second || !strings.Contains(string(out), dir) {
		t.Errorf("nodeagent check took %s: %s", took, out)
	}
	a.probesLeft()
	s.cable(true)
	a.awaitReason("hung-mounts", "", dir, false)
	if err := program.Wait(); err != nil {
		t.Errorf("the program that waited: %v", err)
	}
	expectReplay(t, "NFSServerNotResponding: nfs-server/"+s.address, "recovered in line")
}

// TestNFSExportGone: a server refuses to show a directory, which is an answer; then it withdraws the export, and
// restores it.
func TestNFSExportGone(t *testing.T) {
	a := watch(t)
	s := nfsd(t, "nfs-stale", 2)
	dir := t.TempDir()
	mountNFS(t, s, dir, "hard,actimeo=1")
	run(t, "chmod", "700", s.exported)
	if _, err := os.ReadDir(dir); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("root may read what the server keeps from it: %v", err)
	}
	if out, _ := exec.Command(*binary, "check", "hung-mounts", "--config", a.config).CombinedOutput(); strings.Contains(
		string(out), dir) {
		t.Errorf("a refusal is an answer: %s", out)
	}
	s.unexport()
	a.awaitReason("hung-mounts", "MountBroken", dir, true)
	s.export()
	a.awaitReason("hung-mounts", "", dir, false)
}

// TestNFSServerEnds: the daemons of a server have ended, and on a soft mount every access fails. The new daemons do not
// know the locks of programs.
func TestNFSServerEnds(t *testing.T) {
	a := watch(t)
	s := nfsd(t, "nfs-ends", 3)
	dir := t.TempDir()
	mountNFS(t, s, dir, "soft,timeo=10,retrans=1")
	run(t, "chmod", "777", s.exported)
	locker := exec.Command("flock", dir+"/lock", "sleep", "600")
	if err := locker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = locker.Process.Kill()
		_ = locker.Wait()
	})
	eventually(t, "lock", func() bool {
		var st syscall.Stat_t
		err := syscall.Stat(s.exported+"/lock", &st)
		return err == nil && regexp.MustCompile(fmt.Sprintf(`POSIX .*:%02x:%d `, st.Dev&0xff, st.Ino)).MatchString(
			read("/proc/locks"))
	})
	s.stop()
	a.awaitReason("hung-mounts", "MountBroken", dir, true)
	s.start()
	a.awaitReason("hung-mounts", "", dir, false)
	expectReplay(t, "NFSLockReclaimFailed: nfs-server/"+s.address, "lost 1 locks")
}
