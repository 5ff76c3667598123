package discover

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
)

// flagsOf returns the flags of a running kubelet. If it is part of another program, it has no arguments in /proc: they
// are in the files of its distribution (see distro), and a read error of these is an error.
func (d *discoverer) flagsOf(process host.Process) (map[string]string, error) {
	of, embedded := distro.Embedding(process.Comm)
	if !embedded {
		return parseFlags(process.Args), nil
	}
	return d.flagsOnDisk(d.installRunning(of, process))
}

// flagsOnDisk returns the flags that a distribution's files, its program and its unit give to kubelet.
func (d *discoverer) flagsOnDisk(i install) (map[string]string, error) {
	var args []string
	for _, flag := range i.Flags {
		args = append(args, i.at(flag))
	}
	if dir := i.at(i.ConfigDir); dir != "" && d.exists(dir) {
		args = append(args, "--config-dir="+dir)
	}
	unread := i.unread
	add := func(more []string, err error) {
		args = append(args, more...)
		unread = errors.Join(unread, err)
	}
	if i.Args != "" {
		add(d.argsFile(i))
	}
	switch {
	case i.Embeds() && i.Config != "":
		add(d.edgeFlags(i))
	case !i.Embeds():
		add(d.environmentFlags())
	}
	args = append(append(args, i.own...), i.ofProgram()...)
	flags := parseFlags(args)
	if name := i.at(i.Config); !i.Embeds() && flags["config"] == "" && name != "" && d.exists(name) {
		flags["config"] = name
	}
	return flags, unread
}

// ofProgram translates the flags of K3s, RKE2 and k0s that concern kubelet.
//
//	https://docs.k3s.io/cli/agent, https://docs.k0sproject.io/stable/cli/k0s_worker/
func (i install) ofProgram() (args []string) {
	program := i.program
	for of, flag := range map[string]string{"--node-name": "hostname-override", "--kubelet-root-dir": "root-dir",
		"--container-runtime-endpoint": "container-runtime-endpoint"} {
		if value := flagOf(program, of); value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	docker := func(arg string) bool { return arg == "--docker" || arg == "--docker=true" }
	if i.Runtime.Docker != "" && slices.ContainsFunc(program, docker) {
		args = append(args, "--container-runtime-endpoint=unix://"+i.Runtime.Docker)
	}
	for _, value := range flagsNamed(program, "--kubelet-arg") {
		args = append(args, "--"+strings.TrimLeft(value, "-"))
	}
	return append(args, splitWords(flagOf(program, "--kubelet-extra-args"))...)
}

// argsFile reads flags one a line, with variables of the snap: where the program's kubelet has its flags nowhere else,
// a missing file is an error.
func (d *discoverer) argsFile(i install) ([]string, error) {
	name := i.at(i.Args)
	data, err := d.host.Files.ReadOwned(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !i.Embeds():
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("kubelet's flags: %w", err)
	}
	d.note("kubelet flags: %s", name)
	return flagLines(string(data), i), nil
}

func flagLines(text string, i install) (args []string) {
	snap := strings.TrimPrefix(i.Data, "/var")
	places := strings.NewReplacer("${SNAP_DATA}", i.at("{data}"), "$SNAP_DATA", i.at("{data}"),
		"${SNAP_COMMON}", i.at("{common}"), "$SNAP_COMMON", i.at("{common}"), "${SNAP}", snap, `"`, "", "'", "")
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "--") {
			name, value, spaced := strings.Cut(places.Replace(line), " ")
			if spaced && !strings.Contains(name, "=") {
				name += "=" + strings.TrimSpace(value)
			} else if spaced {
				name += " " + value
			}
			args = append(args, name)
		}
	}
	return args
}

// environmentFlags reads the files from which packages of kubelet take its flags.
func (d *discoverer) environmentFlags() (args []string, unread error) {
	for _, name := range []string{kubeadmFlags, "/etc/default/kubelet", "/etc/sysconfig/kubelet"} {
		data, err := d.host.Files.ReadOwned(name)
		switch {
		case err == nil:
			d.note("kubelet flags: %s", name)
			args = append(args, parseEnvironmentFlags(string(data))...)
		case !errors.Is(err, fs.ErrNotExist):
			unread = errors.Join(unread, fmt.Errorf("kubelet's flags: %w", err))
		}
	}
	return args, unread
}

// edgeFlags reads the settings that KubeEdge gives its kubelet. It serves no healthz.
//
//	modules: {edged: {tailoredKubeletFlag: {rootDirectory: …}, tailoredKubeletConfig: {staticPodPath: …}}}
func (d *discoverer) edgeFlags(i install) ([]string, error) {
	name := i.at(i.Config)
	var config struct {
		Modules struct {
			Edged struct {
				HostnameOverride      string         `json:"hostnameOverride"`
				RemoteRuntimeEndpoint string         `json:"remoteRuntimeEndpoint"`
				Flag                  map[string]any `json:"tailoredKubeletFlag"`
				Config                map[string]any `json:"tailoredKubeletConfig"`
			} `json:"edged"`
		} `json:"modules"`
	}
	if err := d.readYAML(name, &config); err != nil {
		return nil, fmt.Errorf("configuration of %s: %s: %w", i.Name, name, err)
	}
	d.note("kubelet configuration: %s", name)
	edged := config.Modules.Edged
	args := []string{"--healthz-port=0", "--enable-server=false", "--hostname-override=" + edged.HostnameOverride,
		"--container-runtime-endpoint=" + edged.RemoteRuntimeEndpoint}
	add := func(values map[string]any, flags map[string]string) {
		for key, flag := range flags {
			if value, ok := values[key].(string); ok && value != "" {
				args = append(args, "--"+flag+"="+value)
			}
		}
	}
	add(edged.Flag, map[string]string{"rootDirectory": "root-dir", "hostnameOverride": "hostname-override",
		"remoteRuntimeEndpoint": "container-runtime-endpoint"})
	add(edged.Config, map[string]string{"staticPodPath": "pod-manifest-path", "clusterDomain": "cluster-domain",
		"containerRuntimeEndpoint": "container-runtime-endpoint", "cgroupRoot": "cgroup-root"})
	if servers, ok := edged.Config["clusterDNS"].([]any); ok {
		var all []string
		for _, server := range servers {
			all = append(all, fmt.Sprint(server))
		}
		args = append(args, "--cluster-dns="+strings.Join(all, ","))
	}
	return args, nil
}
