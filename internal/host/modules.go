package host

import (
	"errors"
	"io/fs"
	"strings"
)

// HasModule reports whether a part of the kernel can be queried without making the kernel load a module: the module is
// loaded, built in, or the kernel has no module support.
func (h *Host) HasModule(name string) bool {
	if _, err := h.Files.List("/sys/module/" + name); err == nil {
		return true
	}
	modules, err := h.Files.Read("/proc/modules")
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if err != nil || strings.Contains("\n"+string(modules), "\n"+name+" ") {
		return err == nil
	}
	release, err := h.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil || strings.ContainsRune(release, '/') {
		return false
	}
	builtin, err := h.Files.Read("/lib/modules/" + release + "/modules.builtin")
	return err == nil && strings.Contains(string(builtin), "/"+name+".ko")
}
