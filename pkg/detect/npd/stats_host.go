package npd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/nodeagent/nodeagent/internal/host"
)

// sampleHost samples how long the machine has been up.
func sampleHost(_ context.Context, h *host.Host, _ *previous) ([]sample, error) {
	kernel, err := h.Files.Text("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	release, err := h.Files.Read("/etc/os-release")
	if err != nil {
		return nil, err
	}
	m := gauge("host/uptime", "The uptime of the operating system", "kernel_version", "os_version")
	return []sample{{m, []string{label(kernel), label(osVersion(release))},
		float64(int64(h.Clock().SinceBoot.Seconds()))}}, nil
}

// osVersion names the system like node-problem-detector, which rejects unknown ones.
func osVersion(release []byte) string {
	fields := map[string]string{}
	for line := range bytes.Lines(release) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), "=")
		fields[key] = strings.Trim(value, `"'`)
	}
	version := fields["VERSION"]
	if fields["ID"] == "cos" {
		version += "-" + fields["BUILD_ID"]
	}
	return strings.TrimSpace(fields["ID"] + " " + version)
}

// netSampler reads /proc/net/dev.
func netSampler(exclude *regexp.Regexp) sampler {
	return func(_ context.Context, h *host.Host, _ *previous) ([]sample, error) {
		fs, err := procfs.NewFS(h.Files.Path("/proc"))
		if err != nil {
			return nil, err
		}
		devices, err := fs.NetDev()
		if err != nil {
			return nil, fmt.Errorf("read /proc/net/dev: %w", err)
		}
		var samples []sample
		for name, d := range devices {
			if exclude != nil && exclude.MatchString(name) {
				continue
			}
			for _, c := range netCounters(d) {
				samples = append(samples, sample{total("net/"+c.id, c.help, "interface_name"), []string{label(name)},
					float64(c.value)})
			}
		}
		return samples, nil
	}
}

type netCounter struct {
	id, help string
	value    uint64
}

func netCounters(d procfs.NetDevLine) []netCounter {
	return []netCounter{
		{"rx_bytes", "Cumulative count of bytes received.", d.RxBytes},
		{"rx_packets", "Cumulative count of packets received.", d.RxPackets},
		{"rx_errors", "Cumulative count of receive errors encountered.", d.RxErrors},
		{"rx_dropped", "Cumulative count of packets dropped while receiving.", d.RxDropped},
		{"rx_fifo", "Cumulative count of FIFO buffer errors.", d.RxFIFO},
		{"rx_frame", "Cumulative count of packet framing errors.", d.RxFrame},
		{"rx_compressed", "Cumulative count of compressed packets received by the device driver.", d.RxCompressed},
		{"rx_multicast", "Cumulative count of multicast frames received by the device driver.", d.RxMulticast},
		{"tx_bytes", "Cumulative count of bytes transmitted.", d.TxBytes},
		{"tx_packets", "Cumulative count of packets transmitted.", d.TxPackets},
		{"tx_errors", "Cumulative count of transmit errors encountered.", d.TxErrors},
		{"tx_dropped", "Cumulative count of packets dropped while transmitting.", d.TxDropped},
		{"tx_fifo", "Cumulative count of FIFO buffer errors.", d.TxFIFO},
		{"tx_collisions", "Cumulative count of collisions detected on the interface.", d.TxCollisions},
		{"tx_carrier", "Cumulative count of carrier losses detected by the device driver.", d.TxCarrier},
		{"tx_compressed", "Cumulative count of compressed packets transmitted by the device driver.", d.TxCompressed},
	}
}

// featureSampler reads /proc/cmdline and /proc/modules. The list of known modules is beside the file.
func featureSampler(file, known string) sampler {
	if !filepath.IsAbs(known) {
		known = filepath.Join(filepath.Dir(file), known)
	}
	m := gauge("system/os_feature", "OS Features like GPU support, KTD kernel, third party modules as unknown "+
		"modules. 1 if the feature is enabled and 0, if disabled.", "os_feature", "value")
	return func(_ context.Context, h *host.Host, _ *previous) ([]sample, error) {
		var samples []sample
		add := func(feature, value string, on float64) {
			samples = append(samples, sample{m, []string{feature, value}, on})
		}
		commandLine, err := h.Files.Text("/proc/cmdline")
		if err == nil {
			for feature, on := range bootFeatures(commandLine) {
				add(feature, "", on)
			}
		}
		modules, moduleErr := h.Files.Read("/proc/modules")
		if moduleErr != nil {
			return samples, errors.Join(err, moduleErr)
		}
		list, _ := h.Files.Read(known) // without one, no module is known
		gpu, unknown := moduleFeatures(modules, knownModules(list))
		add("GPUSupport", "", gpu)
		add("UnknownModules", label(strings.Join(unknown, ",")), float64(min(len(unknown), 1)))
		return samples, err
	}
}

// bootFeatures reads the kernel's command line.
func bootFeatures(commandLine string) map[string]float64 {
	given := map[string]float64{}
	for _, word := range strings.Fields(commandLine) {
		key, value, _ := strings.Cut(word, "=")
		n, _ := strconv.ParseInt(strings.Trim(value, `"'`), 10, 32) // a value that is no number is off
		given[key] = float64(n)
	}
	features := map[string]float64{
		"KTD": given["csm.enabled"], "UnifiedCgroupHierarchy": given["systemd.unified_cgroup_hierarchy"],
		"KernelModuleIntegrity": 0,
	}
	if given["module.sig_enforce"] == 1 && given["loadpin.enabled"] == 1 {
		features["KernelModuleIntegrity"] = 1
	}
	return features
}

func knownModules(list []byte) []string {
	var modules []struct {
		Name string `json:"moduleName"`
	}
	if json.Unmarshal(list, &modules) != nil {
		return nil
	}
	var names []string
	for _, m := range modules {
		names = append(names, m.Name)
	}
	return names
}

// moduleFeatures reads /proc/modules: "nf_nat 61440 2 xt_MASQUERADE,iptable_nat, Live 0x0000000000000000 (O)".
func moduleFeatures(modules []byte, known []string) (gpu float64, unknown []string) {
	for line := range bytes.Lines(modules) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) == 0:
		case strings.Contains(fields[0], "nvidia"):
			gpu = 1
		case len(fields) > 6 && strings.ContainsAny(fields[6], "OP") && !slices.Contains(known, fields[0]):
			unknown = append(unknown, fields[0])
		}
	}
	return gpu, unknown
}
