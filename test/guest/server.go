package guest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
)

// Server is a minimal machine with some files, one disk and a network, made to be killed. It can be booted repeatedly
// with the same disk.
type Server struct {
	Guest
	Disk    *Disk             // has an ext4 file system, mounted at /data
	Files   map[string]string // path in the machine: a file of this machine
	Command string            // for the shell; the machine continues when it ends
	Ports   map[string]int    // address of this machine: port of the server, whose address is 10.0.2.15
}

var serverModules = [...]string{"virtio_pci", "virtio_blk", "virtio_net", "ext4"}

const serverScript = `#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
busybox --install -s /bin
for module in $(cat /modules); do insmod /lib/$module; done
ip link set lo up
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
mkdir -p /tmp /data
mount -t ext4 /dev/vda /data || { dmesg | tail; echo "guest: no disk"; poweroff -f; }
. /command
while :; do sleep 3600; done
`

// Booted is a running server.
type Booted struct {
	disk   *Disk
	cmd    *exec.Cmd
	socket net.Listener
	served sync.WaitGroup
	failed error // of the disk
}

// Boot starts the machine. It does not wait until a service answers.
func (s Server) Boot(ctx context.Context) (*Booted, error) {
	if err := s.Disk.check(ctx); err != nil {
		return nil, err
	}
	kernel, err := s.kernel(ctx)
	if err != nil {
		return nil, err
	}
	archive := filepath.Join(s.Dir, "initrd.cpio")
	if _, err := os.Stat(archive); err != nil {
		if archive, err = s.archive(ctx, kernel); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(s.Dir, "disk")
	socket, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	b := &Booted{disk: s.Disk, socket: socket}
	b.served.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return // the machine is killed
			}
			b.failed = errors.Join(b.failed, s.Disk.serve(conn))
		}
	})
	network := "user,id=net0,restrict=on"
	for _, here := range slices.Sorted(maps.Keys(s.Ports)) {
		network += fmt.Sprintf(",hostfwd=tcp:%s-10.0.2.15:%d", here, s.Ports[here])
	}
	b.cmd = exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max",
		"-smp", "2", "-m", "1024", "-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio", "-kernel",
		kernel.image, "-initrd", archive, "-append", "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off net.ifnames=0",
		"-drive", "file=nbd:unix:"+path+",format=raw,if=virtio", "-netdev", network, "-device",
		"virtio-net-pci,netdev=net0,romfile=")
	b.cmd.Stdout, b.cmd.Stderr = s.Output, s.Output
	if err := b.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("boot the guest: %w", err), socket.Close())
	}
	return b, nil
}

// Kill cuts the power of the machine and its disk, and returns how many sectors in the disk's cache are lost.
func (b *Booted) Kill() (lost int, err error) {
	err = errors.Join(b.cmd.Process.Kill(), b.socket.Close())
	_ = b.cmd.Wait() // killed
	b.served.Wait()
	lost, failed := b.disk.LosePower()
	return lost, errors.Join(err, b.failed, failed)
}

// archive makes the archive from which the machine boots.
func (s Server) archive(ctx context.Context, k kernel) (string, error) {
	root := filepath.Join(s.Dir, "initrd")
	modules, err := k.modules(ctx, serverModules[:])
	if err != nil {
		return "", err
	}
	files := maps.Clone(s.Files)
	files["/bin/busybox"] = "/bin/busybox"
	var names []string
	for _, module := range modules {
		names = append(names, filepath.Base(module))
		files["/lib/"+filepath.Base(module)] = module
	}
	for _, dir := range []string{"proc", "sys", "dev"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for to, from := range files {
		data, readErr := os.ReadFile(from)
		err = errors.Join(err, readErr, os.MkdirAll(filepath.Dir(root+to), 0o755),
			executable.Write(root+to, data))
	}
	for name, text := range map[string]string{"init": serverScript, "command": s.Command,
		"modules": strings.Join(names, "\n")} {
		err = errors.Join(err, executable.Write(filepath.Join(root, name), []byte(text)))
	}
	for _, applet := range []string{"sh", "mount"} { // the others once /proc is mounted
		err = errors.Join(err, os.Symlink("busybox", filepath.Join(root, "bin", applet)))
	}
	if err != nil {
		return "", err
	}
	return pack(ctx, root, filepath.Join(s.Dir, "initrd.cpio"))
}
