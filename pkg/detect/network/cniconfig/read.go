package cniconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	maxCNIFiles   = 1000
	maxCNIPlugins = 100     // of one configuration
	maxCNIFile    = 1 << 20 // bytes
	maxCNILinks   = 8       // chained symbolic links
)

// cniConfig is the configuration that the runtime would load, and its fault; no reason: none.
type cniConfig struct {
	file    string // empty if there is none
	network string
	plugins []string
	reason  string
	problem string
}

// readCNIConfig finds the configuration as the runtime does.
func readCNIConfig(h *host.Host) (cniConfig, error) {
	dir := h.Paths.CNIConfDir
	names, err := checkkit.ListSorted(h.Files, dir)
	if err != nil {
		return cniConfig{}, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
	})
	if len(names) > maxCNIFiles {
		return cniConfig{}, fmt.Errorf("list %s: more than %d configurations", dir, maxCNIFiles)
	}
	var first *cniConfig // file that cannot be loaded
	for _, name := range names {
		seen, err := readCNIFile(h, path.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errIsDirectory):
			continue // moved away meanwhile
		case err != nil:
			return cniConfig{}, err
		case seen.reason == "":
			return seen.withBinaries(h), nil
		case path.Base(h.Paths.CRISocket) != "crio.sock":
			return seen, nil // containerd takes the first or none
		case first == nil:
			first = &seen
		}
	}
	if first != nil {
		return *first, nil
	}
	return cniConfig{reason: "CNIConfigMissing", problem: "no network configuration in " + dir}, nil
}

var errIsDirectory = errors.New("is a directory")

// readCNIFile reads one file; a fault of its content is in the result.
func readCNIFile(h *host.Host, file string) (cniConfig, error) {
	stat, err := followed(h.Files, file)
	if err != nil {
		return cniConfig{}, err
	}
	if stat.IsDir() {
		return cniConfig{}, fmt.Errorf("read %s: %w", file, errIsDirectory)
	}
	seen := cniConfig{file: file}
	if !stat.IsFile() || stat.Size > maxCNIFile {
		return seen.invalid(fmt.Errorf("not a regular file of at most %d bytes", maxCNIFile)), nil
	}
	data, err := h.Files.ReadOwned(file) // files that others may write are no evidence
	if err != nil {
		return cniConfig{}, err
	}
	list, err := parseCNIConfig(data, path.Ext(file) == ".conflist")
	if err == nil && !list.LoadOnlyInlinedPlugins && path.Ext(file) == ".conflist" {
		err = addCNIPluginFiles(h.Files, list, path.Dir(file))
	}
	if unread, ok := errors.AsType[*unreadError](err); ok {
		return cniConfig{}, unread.error
	}
	if err == nil && len(list.Plugins) == 0 {
		err = errors.New("no plugin in it")
	}
	if err != nil {
		return seen.invalid(err), nil
	}
	seen.network = checkkit.Sanitize(list.Name, 100)
	for _, plugin := range list.Plugins[:min(len(list.Plugins), maxCNIPlugins)] {
		seen.plugins = append(seen.plugins, plugin.Network.Type)
		if ipam := plugin.Network.IPAM.Type; ipam != "" {
			seen.plugins = append(seen.plugins, ipam)
		}
	}
	return seen, nil
}

func (c cniConfig) invalid(err error) cniConfig {
	c.reason, c.problem = "CNIConfigInvalid", fmt.Sprintf("%s cannot be loaded: %s", c.file,
		checkkit.Sanitize(err.Error(), 300))
	return c
}

// parseCNIConfig parses one file as libcni does: a list, or a single plugin.
func parseCNIConfig(data []byte, list bool) (*libcni.NetworkConfigList, error) {
	if list {
		return libcni.NetworkConfFromBytes(data)
	}
	plugin, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	return &libcni.NetworkConfigList{Name: plugin.Network.Name, Plugins: []*libcni.PluginConfig{plugin}}, nil
}

// unreadError means that a file could not be read, or is no evidence: it says nothing about the configuration.
type unreadError struct{ error }

// addCNIPluginFiles adds the plugins of a list that have files of their own: <dir>/<network>/*.conf, since CNI 1.1.
func addCNIPluginFiles(files host.Files, list *libcni.NetworkConfigList, dir string) error {
	if list.Name == "" || strings.ContainsRune(list.Name, '/') || list.Name == ".." {
		return nil
	}
	dir = path.Join(dir, list.Name)
	names, err := checkkit.ListSorted(files, dir)
	if err != nil {
		return nil //nolint:nilerr // most lists have none; one that lacks all of its plugins is malformed for that reason
	}
	for _, name := range names[:min(len(names), maxCNIPlugins)] {
		if path.Ext(name) != ".conf" {
			continue
		}
		data, err := files.ReadOwned(path.Join(dir, name))
		if err != nil {
			return &unreadError{err}
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path.Join(dir, name), err)
		}
		list.Plugins = append(list.Plugins, plugin)
	}
	return nil
}

// withBinaries adds faults of the plugins' programs.
func (c cniConfig) withBinaries(h *host.Host) cniConfig {
	var missing, broken []string
	for _, plugin := range c.plugins {
		switch state := cniBinary(h, plugin); {
		case state == "":
		case state == "missing":
			missing = append(missing, checkkit.Sanitize(plugin, 64))
		default:
			broken = append(broken, checkkit.Sanitize(plugin, 64)+" "+state)
		}
	}
	slices.Sort(missing)
	slices.Sort(broken)
	missing, broken = slices.Compact(missing), slices.Compact(broken)
	dirs := strings.Join(h.Paths.CNIBinDirs, ", ")
	switch {
	case len(missing) > 0:
		c.reason = "CNIPluginMissing"
		c.problem = fmt.Sprintf("%s needs plugins that are not in %s: %s", c.file, dirs, finding.JoinFirst(missing, 5))
	case len(broken) > 0:
		c.reason = "CNIPluginNotExecutable"
		c.problem = fmt.Sprintf("%s needs plugins in %s that cannot be run: %s", c.file, dirs,
			finding.JoinFirst(broken, 5))
	}
	return c
}

// cniBinary returns the fault of a plugin's program: "" for none, "missing", or a text.
func cniBinary(h *host.Host, plugin string) string {
	if plugin == "" || strings.ContainsRune(plugin, '/') {
		return "has an invalid name"
	}
	for _, dir := range h.Paths.CNIBinDirs {
		stat, err := followed(h.Files, path.Join(dir, plugin))
		switch {
		case err != nil || stat.IsDir():
			continue
		case !stat.IsFile():
			return "is not a file"
		case stat.Mode&0o111 == 0:
			return "is not executable"
		case stat.Size == 0:
			return "is empty"
		}
		return ""
	}
	return "missing"
}

// followed returns the status of a file and follows symbolic links by their text.
func followed(files host.Files, name string) (host.FileStat, error) {
	for range maxCNILinks {
		stat, err := files.Stat(name)
		if err != nil || stat.IsFile() || stat.IsDir() {
			return stat, err
		}
		target, err := files.Link(name)
		if err != nil {
			return stat, nil //nolint:nilerr // neither a file nor a directory nor a link
		}
		if !path.IsAbs(target) {
			target = path.Join(path.Dir(name), target)
		}
		name = target
	}
	return host.FileStat{}, fmt.Errorf("stat %s: more than %d symbolic links", name, maxCNILinks)
}
