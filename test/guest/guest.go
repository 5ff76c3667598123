// Package guest boots an emulated machine with Debian's kernel and pure cgroup v2, and runs a test binary in it. There,
// disks, arrays, links and the kernel itself (by modules built for it) can really be broken, and tests run on a
// different kernel than the builder's own. The guest sees the file system of this machine, read-only, below a layer in
// memory: the same tools, another kernel.
//
// It is emulated (it needs no KVM) and up within ten seconds. One guest is a node of a cluster whose control plane is
// on this machine: TestNode.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Guest is a machine to be booted.
type Guest struct {
	Cache  string    // kept between runs: the kernel
	Dir    string    // of this run
	Output io.Writer // output of the guest

	Limit time.Duration // for its tests; 0: 20 minutes

	Systemd bool // systemd is the guest's PID 1; otherwise a shell
	// has the memory that a node of a cluster needs and no disks to break; the loopback of this machine, with the
	// control plane, is at 10.0.2.2
	Node bool
	// only has the command and busybox, all in memory: such a machine can be saved, restored and suspended
	Bare bool

	Modules string   // folder with sources of kernel modules, which are built into the folder modules of Dir; or empty
	Again   []string // the command of a bare guest after its reboot by a panic
}

// doneLine is the last line of the guest, with the exit code of the command.
const doneLine = "guest: the command ended with "

// Run boots the guest, runs a command in it and returns its exit code. Command and arguments are paths of this machine.
func (g Guest) Run(ctx context.Context, command ...string) (int, error) {
	kernel, err := g.kernel(ctx)
	if err != nil {
		return 0, err
	}
	if g.Modules != "" {
		if err := kernel.build(ctx, g.Modules, filepath.Join(g.Dir, "modules")); err != nil {
			return 0, err
		}
	}
	initrd, err := g.initrd(ctx, kernel, command)
	if err != nil {
		return 0, err
	}
	for _, disk := range []string{"nvme.img", "worn.img", "slow.img", "sata.img"} {
		if err := os.WriteFile(filepath.Join(g.Dir, disk), nil, 0o600); err != nil {
			return 0, err
		}
		if err := os.Truncate(filepath.Join(g.Dir, disk), 512<<20); err != nil {
			return 0, err
		}
	}
	return g.boot(ctx, kernel, initrd)
}

func (g Guest) boot(ctx context.Context, kernel kernel, initrd string) (int, error) {
	monitor, serial := filepath.Join(g.Dir, "monitor"), filepath.Join(g.Dir, "serial")
	args := []string{
		"-accel", "tcg,thread=multi", "-machine", "q35", "-smp", "2", "-display", "none", "-nodefaults",
		"-kernel", kernel.image, "-initrd", initrd, "-append",
		"console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off memmap=1M$128M systemd.unit=guest.service " +
			"systemd.show_status=false net.ifnames=0 systemd.condition-needs-update=no systemd.mask=systemd-timesyncd.service",
		"-serial", "stdio", "-serial", "unix:" + serial + ",server=on,wait=off", "-monitor", "unix:" + monitor +
			",server=on,wait=off",
	}
	switch {
	case g.Bare:
		args = append(args, g.bareHardware()...)
	case g.Node:
		args = append(args, nodeHardware()...)
	default:
		args = append(args, g.hardware()...)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.WaitDelay = 5 * time.Second
	watch := &lastLine{out: g.Output}
	cmd.Stdout, cmd.Stderr = watch, watch
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("boot the guest: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- serveMonitor(ctx, serial, monitor) }()
	err := cmd.Wait()
	stop()
	err = errors.Join(err, <-served)
	if watch.code < 0 {
		return 0, errors.Join(errors.New("the guest ended before the command did"), err)
	}
	return watch.code, nil
}

// hostFiles shows the guest this machine's files.
var hostFiles = [...]string{"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"}

// hardware is the breakable hardware of a guest that sees this machine's files.
func (g Guest) hardware() []string {
	return []string{
		"-cpu", "max", "-m", "1536", "-no-reboot",
		hostFiles[0], hostFiles[1],
		"-netdev", "user,id=net0,restrict=on", "-device", "e1000,netdev=net0,id=nic0,mac=52:54:00:00:00:01",
		"-netdev", "user,id=net1,restrict=on", "-device", "e1000,netdev=net1,id=nic1,mac=52:54:00:00:00:02",
		"-drive", "file=" + filepath.Join(g.Dir, "nvme.img") + ",if=none,format=raw,id=nvme-drive", "-device",
		"nvme,drive=nvme-drive,serial=guest,id=nvme0",
		"-drive", "file=" + filepath.Join(g.Dir, "worn.img") + ",if=none,format=raw,id=worn-drive", "-device",
		"nvme,drive=worn-drive,serial=worn,id=worn",
		"-drive", "file=" + filepath.Join(g.Dir, "slow.img") + ",if=none,format=raw,id=slow-drive", "-device",
		"nvme,drive=slow-drive,serial=slow",
		"-device", "pcie-root-port,id=port1,chassis=1", "-device", "x3130-upstream,bus=port1,id=switch",
		"-device", "pcie-root-port,id=port2,chassis=2", "-device",
		"virtio-rng-pci,bus=port2,aer=on,disable-legacy=on,id=lost",
		"-drive", "file=" + filepath.Join(g.Dir, "sata.img") + ",if=none,format=raw,id=sata-drive", "-device",
		"ide-hd,drive=sata-drive,bus=ide.0,serial=sata",
	}
}

// nodeHardware is a machine without breakable hardware.
func nodeHardware() []string {
	return []string{
		"-cpu", "max", "-m", "4096", "-no-reboot", hostFiles[0], hostFiles[1],
		"-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0",
	}
}

// bareHardware is a machine that can be saved, unlike one with its own disk or with this machine's files. Its processor
// is one of Intel's, for which Linux can take damaged memory out of use.
func (g Guest) bareHardware() []string {
	return []string{
		"-cpu", "max,vendor=GenuineIntel", "-m", "768", "-device", "i6300esb",
		// the saved state
		"-drive", "file=" + filepath.Join(g.Dir, "sata.img") + ",if=none,format=raw,snapshot=on,id=states",
	}
}

// lastLine copies the guest's output, and remembers the exit code in it.
type lastLine struct {
	out     io.Writer
	partial string
	known   bool
	code    int
}

func (l *lastLine) Write(data []byte) (int, error) {
	if !l.known {
		l.code, l.known = -1, true
	}
	l.partial += strings.ReplaceAll(string(data), "\r", "")
	for {
		line, rest, ok := strings.Cut(l.partial, "\n")
		if !ok {
			break
		}
		l.partial = rest
		if code, ok := strings.CutPrefix(line, doneLine); ok {
			if _, err := fmt.Sscan(code, &l.code); err != nil {
				return 0, fmt.Errorf("%q: %w", line, err)
			}
			continue
		}
		if _, err := io.WriteString(l.out, line+"\n"); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}
