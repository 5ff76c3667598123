package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// install is a distribution as installed on this node.
type install struct {
	distro.Distribution
	unit    string   // that starts it, without ".service"; empty: there is none
	program []string // arguments of the program that starts kubelet, from the distribution's files and the unit
	own     []string // arguments of kubelet itself, if the unit starts it
	data    string   // the data directory; empty: the default
	unread  error    // a file of it that could not be read
}

// at puts the data directory into a path of the table.
func (i install) at(path string) string { return i.Expand(path, i.data) }

// none reports whether the node is known to run no kubelet, such as a control-plane-only node.
func (i install) none() bool { return i.NoKubelet != nil && i.NoKubelet(i.program) }

// installedHere returns the distribution of the node's unit or, failing that, of its traces. It reads files only.
func (d *discoverer) installedHere() (install, bool) {
	units := d.kubeletUnits()
	var traced []install
	for _, of := range distro.All() {
		i := d.installOf(of, units)
		if i.none() {
			continue
		}
		trace := slices.ContainsFunc(of.Traces, func(t string) bool { return d.exists(i.at(t)) })
		shared := i.unit == "kubelet" // shared by many distributions
		if i.unit != "" && !shared {
			return i, true
		}
		if trace {
			traced = append(traced, i)
		}
	}
	if len(traced) > 0 {
		return traced[0], true
	}
	plain := d.installOf(kubeadm(), units)
	return plain, plain.unit != "" || d.podsLeft(plain)
}

// kubeadm is the distribution of a node without signs of another.
func kubeadm() distro.Distribution {
	of, _ := distro.ByID("kubeadm")
	return of
}

// podsLeft reports whether a kubelet has left directories of pods.
func (d *discoverer) podsLeft(i install) bool {
	root := cmp.Or(d.configured.KubeletRoot, i.at(i.Kubelet.Root))
	names, err := d.host.Files.List(filepath.Join(root, "pods"))
	return err == nil && len(names) > 0
}

// maxUnits limits the units whose files are read.
const maxUnits = 50

// kubeletUnits returns the services on the disk that may start a kubelet, by name, each with its distribution's ID:
// those in the table, and others with "kube" in the name and a known program.
func (d *discoverer) kubeletUnits() map[string]string {
	units := map[string]string{}
	for _, dir := range append(unitDirs(), "/etc/init.d") {
		names, _ := d.host.Files.List(dir)
		for _, name := range names {
			unit, service := strings.CutSuffix(name, ".service")
			if units[unit] != "" || !service && dir != "/etc/init.d" || len(units) == maxUnits {
				continue
			}
			if id := d.unitOf(unit); id != "" {
				units[unit] = id
			}
		}
	}
	return units
}

// unitOf returns the ID of a unit's distribution; empty: it starts no kubelet.
func (d *discoverer) unitOf(unit string) string {
	of, named := distro.OfUnit(unit)
	if named && slices.Contains(of.Units, unit) {
		if of.Launcher == "" && slices.Contains(kubeadm().Units, unit) {
			return kubeadm().ID // shared by many
		}
		return of.ID
	}
	if !named && !strings.Contains(unit, "kube") {
		return ""
	}
	args, _, err := readUnit(d.host.Files, unit+".service")
	if err != nil || len(args) == 0 {
		return ""
	}
	if of, ok := distro.OfLauncher(path.Base(args[0])); ok {
		return of.ID
	}
	if kubeletAt(args) >= 0 { // perhaps through a wrapper
		return kubeadm().ID
	}
	return ""
}

// kubeletAt is the index of kubelet's name in a command, or -1.
func kubeletAt(args []string) int {
	return slices.IndexFunc(args[:min(len(args), 4)], func(arg string) bool { return path.Base(arg) == "kubelet" })
}

// installOf reads the unit and the settings of a distribution.
func (d *discoverer) installOf(of distro.Distribution, units map[string]string) install {
	i := install{Distribution: of, unit: chooseUnit(of, units)}
	i.program, i.unread = d.settingsFiles(of)
	if i.unit != "" {
		args, environment, err := readUnit(d.host.Files, i.unit+".service")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			i.unread = errors.Join(i.unread, fmt.Errorf("unit of kubelet: %w", err))
		}
		if dir := environment[strings.ToUpper(of.ID)+"_DATA_DIR"]; dir != "" && len(of.DataFlag) > 0 {
			i.program = append(i.program, of.DataFlag[0]+"="+dir)
		}
		if at := kubeletAt(args); at >= 0 && of.Launcher == "" {
			i.own = args[at:]
		} else if len(args) > 0 {
			i.program = append(i.program, args[1:]...)
		}
	}
	i.data = cleanDir(flagOf(i.program, of.DataFlag...))
	return i
}

// chooseUnit prefers the units in the table, in its order.
func chooseUnit(of distro.Distribution, units map[string]string) string {
	for _, unit := range of.Units {
		if units[unit] != "" {
			return unit
		}
	}
	var others []string
	for unit, id := range units {
		if id == of.ID {
			others = append(others, unit)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return slices.Min(others)
}

// settingsFiles returns the distribution's own settings as flags of its program, in its reading order.
func (d *discoverer) settingsFiles(of distro.Distribution) (args []string, unread error) {
	var names []string
	for _, name := range of.Settings {
		if !strings.HasSuffix(name, ".d") {
			names = append(names, name)
		} else if below, err := dropIns(d.host.Files, name, ".yaml"); err == nil {
			names = append(names, below...)
		}
	}
	for _, name := range names {
		var values map[string]any
		err := d.readYAML(name, &values)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			unread = errors.Join(unread, fmt.Errorf("settings of %s: %s: %w", of.Name, name, err))
			continue
		}
		args = append(args, flagsOfValues(values)...)
	}
	return args, unread
}

// readYAML reads a file of root's.
func (d *discoverer) readYAML(name string, into any) error {
	data, err := d.host.Files.ReadOwned(name)
	if err == nil && len(data) > maxKubeletConfig {
		err = errors.New("too large")
	}
	if err != nil {
		return err
	}
	return yaml.Unmarshal(data, into)
}

func flagsOfValues(values map[string]any) []string {
	var args []string
	for key, value := range values {
		list, many := value.([]any)
		if !many {
			list = []any{value}
		}
		for _, one := range list {
			args = append(args, fmt.Sprintf("--%s=%v", strings.TrimSuffix(key, "+"), one))
		}
	}
	slices.Sort(args)
	return args
}

// flagOf returns the last value of a flag, by any of its names, dashes included.
func flagOf(args []string, names ...string) (value string) {
	for _, v := range flagsNamed(args, names...) {
		value = v
	}
	return value
}

func flagsNamed(args []string, names ...string) (values []string) {
	for n, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		if !slices.Contains(names, name) {
			continue
		}
		if !given && n+1 < len(args) {
			value = args[n+1]
		}
		values = append(values, value)
	}
	return values
}

// cleanDir accepts only an absolute path.
func cleanDir(dir string) string {
	if !filepath.IsAbs(dir) || len(dir) > 4096 {
		return ""
	}
	return filepath.Clean(dir)
}

// installRunning is the distribution of a running program that contains kubelet: its own arguments, its location and
// its containerd determine the data directory before its unit does.
func (d *discoverer) installRunning(of distro.Distribution, process host.Process) install {
	i := d.installOf(of, d.kubeletUnits())
	if unit := unitOfProcess(d.host, process.PID); of.HasUnit(unit) {
		i.unit = unit
	}
	exe, _ := d.host.Files.Link(proc.File(process.PID, "exe"))
	i.data = cleanDir(cmp.Or(
		flagOf(process.Args, of.DataFlag...),
		distro.DataOf(of.Args, flagOf(process.Args, of.ArgsFlag)),
		distro.DataOf(of.Program, exe), d.dataOfContainerd(of), i.data))
	if i.data != "" && samePath(d.host, i.data, i.Data) {
		i.data = "" // the default name outlives a snap's revision
	}
	i.program = append(i.program, process.Args...)
	return i
}

// dataOfContainerd reads the configuration named by a running containerd.
func (d *discoverer) dataOfContainerd(of distro.Distribution) string {
	all, err := candidates(d.host, func(comm string, _ []string) bool { return comm == "containerd" })
	if err != nil {
		return ""
	}
	processes, _ := believed(all)
	for _, p := range processes {
		if dir := distro.DataOf(of.Runtime.Config, parseContainerdFlags(p.Args)["config"]); dir != "" {
			return dir
		}
	}
	return ""
}

// unitOfProcess returns the service that started a process, without ".service"; empty if its cgroup names none.
func unitOfProcess(h *host.Host, pid int) string {
	cgroups, err := h.ProcCgroups(pid)
	if err != nil {
		return ""
	}
	for _, cgroup := range cgroups {
		for part := range strings.SplitSeq(cgroup, "/") {
			if unit, ok := strings.CutSuffix(part, ".service"); ok && distro.IsKubeletUnit(unit) {
				return hosterr.Sanitize(unit, 100)
			}
		}
	}
	return ""
}
