package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kernel-modules reads
//
//	/proc/modules                          overlay 151552 12 - Live 0x0000000000000000        the loaded ones
//	/sys/module/NAME                       exists for built-in modules too, if they have a parameter or a version
//	/lib/modules/RELEASE/modules.builtin   kernel/fs/overlayfs/overlay.ko       all that are built in
//
// the last two only for modules that are not loaded. https://man7.org/linux/man-pages/man5/proc_modules.5.html
//
// Which modules a node needs depends on its network, its storage and its runtime; the check wants only those that the
// configuration names. Names are compared with "-" as "_", as the kernel does.

// KernelModulesSettings are the settings of kernel-modules.
type KernelModulesSettings struct {
	Modules []string `yaml:"modules"` // must be loaded or built in
}

// DefaultKernelModulesSettings returns the settings that are used unless the configuration says otherwise: no module.
func DefaultKernelModulesSettings() KernelModulesSettings { return KernelModulesSettings{} }

// KernelModules finds nodes without a kernel module that the configuration wants.
func KernelModules(s KernelModulesSettings) detect.Check {
	return detect.Check{
		ID: "kernel-modules", Domain: "kernel",
		Summary: "a kernel module that the configuration names is neither loaded nor built in",
		Advice: "Load it with `modprobe NAME`, whose error shows why it cannot be loaded; a file in " +
			"/etc/modules-load.d loads it at each boot. After an update of the kernel without its modules, reboot.",
		Doc: detect.Doc{
			Reads: []string{"/proc/modules", "/sys/module/NAME and /lib/modules/RELEASE/modules.builtin, for " +
				"those that are not loaded"},
			Why: "Without its module a network, a filesystem or a device of pods does not work, often with " +
				"an error that does not name the module.",
			Faults: []detect.Fault{{Reason: "KernelModuleMissing", Severity: finding.Warning,
				When: "a module of the setting modules is neither loaded nor built in; the list is empty by default"}},
			FalseAlarms: "Modules that the kernel loads at their first use, most of them, may be absent until then: " +
				"do not name these.",
		},
		Every: 10 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			if len(s.Modules) == 0 {
				return nil, finding.NotApplicable("no modules are named in the configuration")
			}
			return missingModules(h, s.Modules)
		},
	}
}

func missingModules(h *host.Host, wanted []string) ([]finding.Finding, error) {
	loaded, err := loadedModules(h.Files)
	if err != nil {
		return nil, err
	}
	var findings []finding.Finding
	for _, name := range wanted {
		module := strings.ReplaceAll(name, "-", "_")
		if loaded[module] {
			continue
		}
		builtIn, err := isBuiltIn(h.Files, module)
		if err != nil {
			return nil, err
		}
		if !builtIn {
			findings = append(findings, finding.Finding{
				Subject:  finding.Subject{Kind: "kernel-module", Name: module},
				Severity: finding.Warning, Reason: "KernelModuleMissing",
				Message: fmt.Sprintf("kernel module %s is neither loaded nor built in", module),
			})
		}
	}
	return findings, nil
}

// loadedModules is empty if the kernel was built without modules.
func loadedModules(files host.Files) (map[string]bool, error) {
	const file = "/proc/modules"
	data, err := files.Read(file)
	if err != nil {
		return nil, hosterr.Ignore(err, fs.ErrNotExist)
	}
	loaded := make(map[string]bool)
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			return nil, fmt.Errorf("read %s: line %q: want a name and its state", file, checkkit.Sanitize(line, 80))
		}
		loaded[fields[0]] = fields[4] == "Live"
	}
	return loaded, nil
}

// isBuiltIn reports whether a module that is not loaded is part of the kernel itself. A module being unloaded has a
// folder too, but is in /proc/modules.
func isBuiltIn(files host.Files, module string) (bool, error) {
	_, err := files.Stat("/sys/module/" + module)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err == nil, err
	}
	release, err := files.Text("/proc/sys/kernel/osrelease")
	if err != nil {
		return false, err
	}
	file := "/lib/modules/" + release + "/modules.builtin"
	data, err := files.Read(file)
	if err != nil {
		return false, hosterr.Ignore(err, fs.ErrNotExist) // a kernel whose modules are not installed has none to load either
	}
	for line := range strings.Lines(string(data)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line[strings.LastIndexByte(line, '/')+1:]), ".ko")
		if strings.ReplaceAll(name, "-", "_") == module {
			return true, nil
		}
	}
	return false, nil
}
