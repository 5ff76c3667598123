package lab

import (
	"context"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packages are the Debian packages that the lab and the tests of the agent need, each with a file that shows that it is
// installed.
var packages = [...]struct{ name, file string }{
	{"etcd-server", "/usr/bin/etcd"},
	{"postgresql", "/usr/bin/pg_ctlcluster"}, // for tracecenter
	{"containerd", "/usr/bin/containerd"},
	{"runc", "/usr/sbin/runc"},
	{"conmon", "/usr/bin/conmon"}, // for CRI-O
	{"containernetworking-plugins", "/usr/lib/cni/bridge"},
	{"busybox-static", "/bin/busybox"},
	{"iproute2", "/sbin/ip"},
	{"iptables", "/usr/sbin/iptables"},
	{"nftables", "/usr/sbin/nft"},
	{"mount", "/bin/mount"},
	{"e2fsprogs", "/sbin/mkfs.ext4"},
	{"xfsprogs", "/sbin/mkfs.xfs"},
	{"btrfs-progs", "/sbin/mkfs.btrfs"},
	{"rpm", "/usr/bin/rpmbuild"},
	{"cpio", "/bin/cpio"},
	{"rpmlint", "/usr/bin/rpmlint"},
	{"systemd-container", "/usr/bin/systemd-nspawn"},
	{"debootstrap", "/usr/sbin/debootstrap"},
	{"qemu-system-x86", "/usr/bin/qemu-system-x86_64"}, // for the guest
	{"kmod", "/sbin/modprobe"},
	{"dmsetup", "/sbin/dmsetup"},
	{"mdadm", "/sbin/mdadm"},
	{"gcc", "/usr/bin/gcc"}, // for the race detector, and modules of the guest's kernel
	{"make", "/usr/bin/make"},
	{"libc6-dev", "/usr/include/stdlib.h"},
	{"libseccomp-dev", "/usr/include/seccomp.h"}, // for runc
	{"pkg-config", "/usr/bin/pkg-config"},
}

// InstallPackages installs missing packages; if none is missing, it does not run apt-get.
func InstallPackages(ctx context.Context, log io.Writer) error {
	return installPackages(ctx, newProgress(log))
}

func installPackages(ctx context.Context, l progress) error {
	var missing []string
	for _, p := range packages {
		_, err := os.Stat(p.file)
		if err != nil || p.name == "busybox-static" && !static(p.file) {
			missing = append(missing, p.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	l.logf("installing Debian packages: %s", strings.Join(missing, " "))
	if lists, _ := filepath.Glob("/var/lib/apt/lists/*_Packages*"); len(lists) > 0 {
		if aptGet(ctx, append([]string{"install"}, missing...)...) == nil {
			return nil
		}
	}
	l.logf("updating the package lists first")
	if err := aptGet(ctx, "update"); err != nil {
		return err
	}
	return aptGet(ctx, append([]string{"install"}, missing...)...)
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-y", "-q", "--no-install-recommends"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// static reports whether a program needs no dynamic linker: an image of that program alone would not run otherwise.
func static(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}
