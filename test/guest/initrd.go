package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bootModules are the modules that the guest needs before it sees this machine's files.
var bootModules = [...]string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// bareModules are all modules of a bare guest.
var bareModules = [...]string{"brd", "ext4", "hwpoison-inject", "i6300esb", "ramoops"}

// initScript makes this machine's files the root, with a layer in memory over them, and runs the command there.
const initScript = `#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules); do insmod /lib/$module || echo "guest: module $module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host || echo "guest: no files"
mount -t tmpfs tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /root
rm -f /root/.dockerenv # this machine may be a container, the guest is none
for dir in proc sys dev; do mount -o move /$dir /root/$dir; done
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t tmpfs tmpfs /root/run
mkdir /root/run/tmp
mount -t tmpfs tmpfs /root/var/lib
mkdir -p /root/lib/modules /root/dev/shm /root/dev/pts
mount -o bind "/host$(cat /kernel)/lib/modules" /root/lib/modules
mount -t tmpfs tmpfs /root/dev/shm
mount -t devpts devpts /root/dev/pts
ip link set lo up
if [ -e /node ]; then
	mount -t tmpfs tmpfs /root/var/log # a lab of this machine has links to logs there
	ip addr add 10.0.2.15/24 dev eth0
	ip link set eth0 up
fi
stty -F /root/dev/ttyS1 raw -echo
cp /command /root/run/command
if [ -e /unit ]; then
	mkdir -p /root/run/systemd/system /root/run/tmpfiles.d
	: > /root/run/tmpfiles.d/tmp.conf # which empties /tmp, where the command lies
	cp /unit /root/run/systemd/system/guest.service
	exec switch_root /root /lib/systemd/systemd
fi
exec switch_root /root /bin/busybox sh /run/command
`

// bareScript makes the archive itself the root.
const bareScript = `#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
busybox --install -s /bin
mount -t pstore pstore /sys/fs/pstore
for module in $(cat /modules); do
	case $module in
	ramoops.ko) options="mem_address=0x8000000 mem_size=0x100000 record_size=0x20000" ;; # left alone: see memmap
	*) options= ;;
	esac
	insmod /lib/$module $options
done
ls /sys/fs/pstore/dmesg-* 2>/dev/null && mv /again /command
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug
mount -t tmpfs tmpfs /run
mkdir -p /run/tmp /dev/shm
ip link set lo up
stty -F /dev/ttyS1 raw -echo
exec /bin/busybox sh /command
`

// commandUnit is the unit that runs the command if systemd is the guest's init, beside the standard units of this
// machine's systemd: journal, udev, D-Bus, but none of its own services. It is in effect the default target.
const commandUnit = `[Unit]
DefaultDependencies=no
Requires=basic.target dbus.socket
After=basic.target dbus.socket
[Service]
ExecStart=/bin/busybox sh /run/command
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
`

// initrd makes the archive from which the guest boots.
func (g Guest) initrd(ctx context.Context, k kernel, command []string) (string, error) {
	root := filepath.Join(g.Dir, "initrd")
	for _, dir := range []string{"bin", "proc", "sys", "dev", "host", "layer", "root", "lib", "run", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return "", err
		}
	}
	var problems []error
	write := func(name, text string, mode os.FileMode) {
		problems = append(problems, os.WriteFile(filepath.Join(root, name), []byte(text), mode))
	}
	needed, script := bootModules[:], initScript
	if g.Node {
		needed = append(needed, "virtio_net")
		write("node", "", 0o644)
	}
	if g.Bare {
		needed, script = bareModules[:], bareScript
		problems = append(problems, bring(root, command))
	}
	write("init", script, 0o755)
	write("kernel", k.root, 0o644)
	write("command", quoted(command), 0o644)
	write("again", quoted(g.Again), 0o644)
	if g.Systemd {
		write("unit", commandUnit, 0o644)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", err
	}
	write("bin/busybox", string(busybox), 0o755)
	for _, applet := range []string{"sh", "mount", "insmod", "cat", "cp", "rm", "mkdir", "echo", "ip", "stty",
		"switch_root"} {
		problems = append(problems, os.Symlink("busybox", filepath.Join(root, "bin", applet)))
	}
	modules, err := k.modules(ctx, needed)
	if err != nil {
		return "", err
	}
	var names []string
	for _, file := range modules {
		data, err := os.ReadFile(file)
		problems = append(problems, err)
		names = append(names, filepath.Base(file))
		write(filepath.Join("lib", filepath.Base(file)), string(data), 0o644)
	}
	write("modules", strings.Join(names, "\n"), 0o644)
	if err := errors.Join(problems...); err != nil {
		return "", err
	}
	return pack(ctx, root, filepath.Join(g.Dir, "initrd.cpio"))
}

// bring copies the words of a command that are files of this machine to the same path in the archive.
func bring(root string, command []string) error {
	for _, word := range command {
		if info, err := os.Stat(word); err != nil || !info.Mode().IsRegular() {
			continue
		}
		to := filepath.Join(root, word)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Link(word, to)); err != nil {
			return err
		}
	}
	return nil
}

// quoted returns a command as a line for the shell.
func quoted(command []string) string {
	var words []string
	for _, word := range command {
		words = append(words, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp " +
		"DM_DISABLE_UDEV=1\ncd /run/tmp && " + strings.Join(words, " ") +
		"\necho \"" + doneLine + "$?\"\nsync\n/bin/busybox poweroff -f\n/bin/busybox sleep 10\n"
}

// modules returns the files of modules with their dependencies, in load order.
func (k kernel) modules(ctx context.Context, names []string) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	for _, name := range names {
		out, err := output(ctx, "/", "modprobe", "-d", k.root, "-S", k.release, "--show-depends", name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			if len(fields) > 1 && fields[0] == "insmod" && !seen[fields[1]] {
				seen[fields[1]] = true
				files = append(files, fields[1])
			}
		}
	}
	return files, nil
}

func pack(ctx context.Context, root, file string) (string, error) {
	archive, err := os.Create(file)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", "find . -print0 | cpio --null --create --quiet --format=newc")
	cmd.Dir, cmd.Stdout = root, archive
	if err := errors.Join(cmd.Run(), archive.Close()); err != nil {
		return "", fmt.Errorf("pack %s: %w", root, err)
	}
	return file, nil
}
