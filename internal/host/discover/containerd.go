package discover

import (
	"cmp"
	"errors"
	"path/filepath"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// containerdSettings are the settings of one containerd, from its flags and its file. Flags win.
type containerdSettings struct {
	address, root, state string
	confDir              string
	binDirs              []string
	unread               error // a file that could not be read
}

const containerdConfig = "/etc/containerd/config.toml"

// runtimeFields are the settings that the runtime's files decide.
func runtimeFields() []host.Setting {
	return []host.Setting{host.ContainerdRoot, host.ContainerdState, host.CNIConfDir, host.CNIBinDirs, host.NetnsDirs}
}

// containerd applies the settings of the containerd that serves the CRI socket, or those on disk if none runs.
func (d *discoverer) containerd() error {
	if why := d.Doubts[host.CRISocket]; why != nil { // which runtime kubelet uses
		d.Doubts.Add(why, runtimeFields()...)
	}
	if d.Paths.ContainerdSocket == "" {
		return nil
	}
	socket := cmp.Or(d.configured.ContainerdSocket, d.Paths.ContainerdSocket)
	return d.serving("containerd", "containerd", runtimeFields(), func(args []string, pid int) (bool, error) {
		flags := parseContainerdFlags(args)
		settings := d.containerdFlags(flags, pid)
		if !sameSocket(settings.address, socket) && pid != 0 {
			if flags["address"] == "" {
				return false, settings.unread
			}
			return false, nil
		}
		d.applyContainerd(settings, flags)
		return true, nil
	})
}

// serving calls apply for a runtime's processes until one serves the socket; if none runs, it applies the runtime's
// files alone: without flags and process. The error of apply is why a process may serve the socket nevertheless: then
// its settings are in doubt.
func (d *discoverer) serving(comm, name string, settings []host.Setting,
	apply func(args []string, pid int) (served bool, maybe error)) error {
	all, err := candidates(d.host, func(is string, _ []string) bool { return is == comm })
	if err != nil {
		return err
	}
	processes, unsure := believed(all)
	if unsure != nil {
		d.note("%s: %v", name, unsure)
	}
	var doubts error
	for _, process := range append(processes, host.Process{}) {
		served, maybe := apply(process.Args, process.PID)
		if served && process.PID != 0 {
			d.note("%s: process %d", name, process.PID)
			return nil
		}
		doubts = errors.Join(doubts, maybe)
	}
	if doubts != nil {
		d.Doubts.Add(doubts, settings...)
	}
	return nil
}

func (d *discoverer) applyContainerd(s containerdSettings, flags map[string]string) {
	p := &d.Paths
	if s.unread != nil {
		d.Doubts.Add(s.unread, host.CNIConfDir, host.CNIBinDirs)
		if flags["root"] == "" {
			d.Doubts.Add(s.unread, host.ContainerdRoot)
		}
		if flags["state"] == "" {
			d.Doubts.Add(s.unread, host.ContainerdState, host.NetnsDirs)
		}
	}
	d.setPath(&p.ContainerdRoot, s.root, host.ContainerdRoot)
	d.setPath(&p.ContainerdState, s.state, host.ContainerdState)
	d.setPath(&p.CNIConfDir, s.confDir, host.CNIConfDir)
	if len(s.binDirs) > 0 {
		p.CNIBinDirs = s.binDirs
	}
	p.NetnsDirs = netnsDirs(cmp.Or(d.configured.ContainerdState, p.ContainerdState))
}

// netnsDirs are the directories of network namespaces; the CRI plugin keeps them below its state with
// netns_mounts_under_state_dir.
func netnsDirs(state string) []string {
	return []string{"/run/netns", filepath.Join(state, "io.containerd.grpc.v1.cri/netns")}
}

// containerdFlags reads the file that the flags name, then applies them.
func (d *discoverer) containerdFlags(flags map[string]string, pid int) containerdSettings {
	s := containerdSettings{address: DefaultPaths().CRISocket}
	name := cmp.Or(flags["config"], containerdConfig)
	if pid == 0 { // none runs: the one configured for kubelet
		s.address = d.Paths.ContainerdSocket
		name = cmp.Or(d.install.at(d.install.Runtime.Config), name)
	}
	if name = d.absolute(name, pid); name != "" {
		d.containerdFiles(&s, name, flags["config"] != "")
	}
	setIf(&s.address, flags["address"])
	setIf(&s.root, flags["root"])
	setIf(&s.state, flags["state"])
	return s
}

// parseContainerdFlags reads containerd's flags: one dash or two, short names for some.
func parseContainerdFlags(args []string) map[string]string {
	long := make([]string, 0, len(args))
	for _, arg := range args {
		name, value, given := strings.Cut(arg, "=")
		switch name {
		case "-c", "-config":
			name = "--config"
		case "-a", "-address":
			name = "--address"
		case "-root", "-state":
			name = "-" + name
		}
		if given {
			name += "=" + value
		}
		long = append(long, name)
	}
	return parseFlags(long)
}

// sameSocket compares two paths of sockets. /var/run is a symbolic link to /run on every distribution.
func sameSocket(a, b string) bool {
	plain := func(path string) string {
		path = filepath.Clean(strings.TrimPrefix(path, "unix://"))
		if strings.HasPrefix(path, "/var/run/") {
			return strings.TrimPrefix(path, "/var")
		}
		return path
	}
	return plain(a) == plain(b)
}
