package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// The places of CRI-O's configuration: a file, then the files of a folder in the order of their names.
//
// https://github.com/cri-o/cri-o/blob/main/docs/crio.conf.d.5.md
const (
	crioConfig    = "/etc/crio/crio.conf"
	crioConfigDir = "/etc/crio/crio.conf.d"
)

// crioSettings are the settings of CRI-O that the agent needs, from its files and its flags. Flags win.
type crioSettings struct {
	listen        string
	namespacesDir string // network namespaces are in its folder netns
	networkDir    string
	pluginDirs    []string
	unread        error // a file that could not be read
}

// crio applies the settings of the CRI-O that serves the CRI socket, or those on disk if none runs.
func (d *discoverer) crio() error {
	socket := d.Paths.CRISocket
	if d.Paths.ContainerdSocket != "" {
		return nil
	}
	fields := []host.Setting{host.CNIConfDir, host.CNIBinDirs, host.NetnsDirs}
	return d.serving("crio", "CRI-O", fields, func(args []string, pid int) (bool, error) {
		flags := parseCRIOFlags(args)
		settings := d.crioFiles(flags, pid)
		if !sameSocket(settings.listen, socket) {
			if flags["listen"] == "" {
				return false, settings.unread
			}
			return false, nil
		}
		d.applyCRIO(settings, flags)
		return true, nil
	})
}

func (d *discoverer) applyCRIO(s crioSettings, flags map[string]string) {
	p := &d.Paths
	for setting, flag := range map[host.Setting]string{host.CNIConfDir: "cni-config-dir",
		host.CNIBinDirs: "cni-plugin-dir", host.NetnsDirs: "namespaces-dir"} {
		if s.unread != nil && flags[flag] == "" {
			d.Doubts.Add(s.unread, setting)
		}
	}
	d.setPath(&p.CNIConfDir, s.networkDir, host.CNIConfDir)
	if len(s.pluginDirs) > 0 {
		p.CNIBinDirs = s.pluginDirs
	}
	if dir := filepath.Join(s.namespacesDir, "netns"); !slices.Contains(p.NetnsDirs, dir) && dir != "/var/run/netns" {
		p.NetnsDirs = append(slices.Clone(p.NetnsDirs), dir)
	}
}

// crioFiles reads the files that the flags name, then applies the flags.
func (d *discoverer) crioFiles(flags map[string]string, pid int) crioSettings {
	s := crioSettings{listen: "/var/run/crio/crio.sock", namespacesDir: "/var/run"}
	given := func(flag, otherwise string) string {
		if value, ok := flags[flag]; ok {
			return d.absolute(value, pid) // empty: none is read
		}
		return otherwise
	}
	names := []string{given("config", crioConfig)}
	if dir := given("config-dir", crioConfigDir); dir != "" {
		below, err := dropIns(d.host.Files, dir, "")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.unread = errors.Join(s.unread, fmt.Errorf("CRI-O's configuration: %w", err))
			d.note("CRI-O's configuration: %v", err)
		}
		names = append(names, below...)
	}
	for _, name := range names {
		if name != "" {
			d.crioFile(&s, name, pid != 0)
		}
	}
	setIf(&s.listen, flags["listen"])
	setIf(&s.namespacesDir, flags["namespaces-dir"])
	setIf(&s.networkDir, flags["cni-config-dir"])
	if dirs := flags["cni-plugin-dir"]; dirs != "" {
		s.pluginDirs = absolutePaths(strings.Split(dirs, ","))
	}
	return s
}

// crioFile applies one file. All of them may be missing: CRI-O has defaults.
func (d *discoverer) crioFile(s *crioSettings, name string, wanted bool) {
	data, err := d.host.Files.ReadOwned(name)
	if errors.Is(err, fs.ErrNotExist) && !(wanted && name != crioConfig) {
		return
	}
	var values map[string][]string
	if err == nil {
		values, err = host.ParseTOMLStrings(data)
	}
	if err != nil {
		err = fmt.Errorf("CRI-O's configuration %s: %w", name, err)
		d.note("%v", err)
		s.unread = errors.Join(s.unread, err)
		return
	}
	d.note("CRI-O's configuration: %s", name)
	for key, target := range map[string]*string{"crio.api.listen": &s.listen,
		"crio.runtime.namespaces_dir": &s.namespacesDir, "crio.network.network_dir": &s.networkDir} {
		if len(values[key]) == 1 {
			setIf(target, values[key][0])
		}
	}
	dirs := slices.Concat(values["crio.network.plugin_dirs"], values["crio.network.plugin_dir"])
	if dirs = absolutePaths(dirs); len(dirs) > 0 {
		s.pluginDirs = dirs
	}
}

func absolutePaths(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !filepath.IsAbs(path) })
}

// parseCRIOFlags reads CRI-O's flags; some have a short name.
func parseCRIOFlags(args []string) map[string]string {
	flags := parseFlags(args)
	for short, long := range map[string]string{"-c": "config", "-d": "config-dir"} {
		if i := slices.Index(args, short); i > 0 && i+1 < len(args) {
			flags[long] = cmp.Or(flags[long], args[i+1])
		}
	}
	return flags
}
