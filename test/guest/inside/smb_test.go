package inside

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// smbServer is Samba's server in a network namespace.
type smbServer struct {
	server
	config string
	cmd    *exec.Cmd
}

// smbd starts a server.
func smbd(t *testing.T, name string, number int) *smbServer {
	t.Helper()
	run(t, "modprobe", "cifs")
	s := &smbServer{server: connect(t, name, number)}
	dir := t.TempDir()
	s.config = dir + "/smb.conf"
	config := fmt.Sprintf(`[global]
server role = standalone
map to guest = bad user
load printers = no
disable spoolss = yes
smb ports = 445
private dir = %[1]s
lock directory = %[1]s
state directory = %[1]s
cache directory = %[1]s
pid directory = %[1]s
ncalrpc dir = %[1]s/ncalrpc
log file = %[1]s/log
[share]
path = %[2]s
guest ok = yes
read only = no
force user = root
`, dir, t.TempDir())
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Log(read(dir + "/log"))
		}
	})
	return s
}

// start starts the processes of the server, in their own process group.
func (s *smbServer) start() {
	s.t.Helper()
	smbd := unpacked("usr/sbin/smbd", "--foreground", "--no-process-group", "--configfile="+s.config)
	s.cmd = exec.Command("nsenter", append([]string{"--net=/run/netns/" + s.name}, smbd.Args...)...)
	s.cmd.Env = smbd.Env
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "SMB server", func() bool {
		return exec.Command("nsenter", "--net=/run/netns/"+s.name, "grep", "-q", ":01BD .* 0A ", "/proc/net/tcp",
			"/proc/net/tcp6").Run() == nil
	})
}

func (s *smbServer) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := syscall.Kill(-s.cmd.Process.Pid, sig); err != nil {
		s.t.Error(err)
	}
}

func (s *smbServer) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	_ = s.cmd.Wait() // the error says that it was killed
}

// mount mounts the server's share. A silent server is given up after 15 s instead of three minutes; a server just
// started on a busy machine may need longer.
func (s *smbServer) mount() (dir string) {
	s.t.Helper()
	dir = s.t.TempDir()
	options := "ip=" + s.address + ",sec=none,vers=3.0,nodfs,echo_interval=5"
	eventually(s.t, "SMB share", func() bool {
		return exec.Command("mount", "-i", "-t", "cifs", "-o", options, "//"+s.address+"/share", dir).Run() == nil
	})
	s.t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_FORCE|syscall.MNT_DETACH) })
	return dir
}

// TestSMBServerStopped: the server of an SMB share stands still: its kernel accepts connections, but it does not
// answer.
func TestSMBServerStopped(t *testing.T) {
	a := watch(t)
	s := smbd(t, "smb-stopped", 4)
	dir := s.mount()
	s.signal(syscall.SIGSTOP)
	a.awaitReason("hung-mounts", "MountHung", dir, true)
	expectReplay(t, `smb-server/\\`+s.address, "has not responded")
	a.probesLeft()
	s.signal(syscall.SIGCONT)
	a.awaitReason("hung-mounts", "", dir, false)
}

// TestSMBServerGone: the server of an SMB share ends, and another one is started.
func TestSMBServerGone(t *testing.T) {
	a := watch(t)
	s := smbd(t, "smb-gone", 9)
	dir := s.mount()
	s.kill()
	a.awaitReason("hung-mounts", "", dir, true)
	s.start()
	a.awaitReason("hung-mounts", "", dir, false)
}
