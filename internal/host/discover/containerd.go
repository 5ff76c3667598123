package discover

import (
	"cmp"
	"path/filepath"
	"strings"
)

// containerdSettings are the settings of one containerd, from its flags and its file. Flags win.
type containerdSettings struct {
	address, root, state string
	confDir              string
	binDirs              []string
}

const containerdConfig = "/etc/containerd/config.toml"

// containerd applies what the containerd says that serves the CRI socket; the one on disk where none runs.
func (d *discoverer) containerd() error {
	if d.Paths.ContainerdSocket == "" {
		return nil
	}
	socket := cmp.Or(d.configured.ContainerdSocket, d.Paths.ContainerdSocket)
	return d.serving("containerd", "containerd", func(args []string, pid int) bool {
		settings := d.containerdFlags(parseContainerdFlags(args), pid)
		if !sameSocket(settings.address, socket) {
			return false
		}
		d.applyContainerd(settings)
		return true
	})
}

// serving has the first process of a runtime applied of which apply says that it serves, or, where none runs that does,
// the runtime's files alone: without flags, of no process.
func (d *discoverer) serving(comm, name string, apply func(args []string, pid int) bool) error {
	all, err := candidates(d.host, func(is string, _ []string) bool { return is == comm })
	if err != nil {
		return err
	}
	processes, unsure := believed(all)
	if unsure != nil {
		d.note("%s: %v", name, unsure)
	}
	for _, process := range processes {
		if apply(process.Args, process.PID) {
			d.note("%s: process %d", name, process.PID)
			return nil
		}
	}
	apply(nil, 0)
	return nil
}

func (d *discoverer) applyContainerd(s containerdSettings) {
	p := &d.Paths
	d.setPath(&p.ContainerdRoot, s.root)
	d.setPath(&p.ContainerdState, s.state)
	d.setPath(&p.CNIConfDir, s.confDir)
	if len(s.binDirs) > 0 {
		p.CNIBinDirs = s.binDirs
	}
	state := cmp.Or(d.configured.ContainerdState, p.ContainerdState)
	// Where the CRI plugin keeps network namespaces with netns_mounts_under_state_dir.
	p.NetnsDirs = []string{"/run/netns", filepath.Join(state, "io.containerd.grpc.v1.cri/netns")}
}

// containerdFlags reads the file that the flags name, then applies them.
func (d *discoverer) containerdFlags(flags map[string]string, pid int) containerdSettings {
	s := containerdSettings{address: DefaultPaths().CRISocket}
	if name := d.absolute(cmp.Or(flags["config"], containerdConfig), pid); name != "" {
		d.containerdFiles(&s, name)
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
