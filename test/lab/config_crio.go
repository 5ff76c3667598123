package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"text/template"
)

func (l *Lab) crioConfig() string { return filepath.Join(l.Dir, "config/crio.conf") }

func (l *Lab) imagePolicy() string { return filepath.Join(l.Dir, "config/policy.json") }

// runtime is CRI-O's program to run containers.
func (l *Lab) runtime() string { return filepath.Join(l.Dir, "bin/crio-runc") }

// crioTemplate moves every compiled-in path outside the lab's folder. A sandbox has no container of its own, which is
// CRI-O's default: mounts hold its namespaces.
var crioTemplate = template.Must(template.New("crio").Parse(`[crio]
root = "{{.Dir}}/crio/storage"
runroot = "{{.Dir}}/run/crio/storage"
storage_driver = "overlay"
log_dir = "{{.Dir}}/log/crio"
version_file = "{{.Dir}}/run/crio/version"
version_file_persist = ""
clean_shutdown_file = "{{.Dir}}/crio/clean.shutdown"

[crio.api]
listen = "{{.Paths.CRISocket}}"
stream_address = "127.0.0.1"
stream_port = "0"

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
namespaces_dir = "{{.Dir}}/run"
pinns_path = "{{.Paths.CRIODir}}/pinns"
container_exits_dir = "{{.Dir}}/run/crio/exits"
container_attach_socket_dir = "{{.Dir}}/run/crio"
hooks_dir = []
cdi_spec_dirs = []
log_level = "info"

[crio.runtime.runtimes.runc]
runtime_path = "{{.Dir}}/bin/crio-runc"
runtime_type = "oci"
runtime_root = "{{.Paths.RuncRoot}}"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = "{{.SandboxImage}}"
signature_policy = "{{.ImagePolicy}}"
signature_policy_dir = "{{.Dir}}/config/policies"

[crio.network]
network_dir = "{{.Paths.CNIConfDir}}"
plugin_dirs = ["{{.Paths.CNIBinDir}}"]

[crio.nri]
enable_nri = false

[crio.metrics]
enable_metrics = false
`))

// runcTemplate is runc without limits of huge pages, which kubelet always sets: on a machine whose only controller for
// them is in cgroup v2, beside others in v1, CRI-O finds it and runc does not.
var runcTemplate = template.Must(template.New("runc").Parse(`#!/bin/busybox sh
bundle=
for word; do
	[ "$last" = --bundle ] && bundle=$word
	last=$word
done
[ -z "$bundle" ] || /bin/busybox sed -i '/"hugepageLimits": \[/,/\]/{/[{}]\|"pageSize"\|"limit"/d}' "$bundle/config.json"
exec /usr/sbin/runc "$@"
`))

var policyTemplate = template.Must(template.New("policy").Parse(`{"default": [{"type": "insecureAcceptAnything"}]}
`))

func (l *Lab) crioArgs() []string {
	return []string{filepath.Join(l.Paths.CRIODir, "crio"), "--config", l.crioConfig(), "--config-dir", ""}
}

// copyImage copies an archive's image to CRI-O, which has no import of its own.
func (l *Lab) copyImage(ctx context.Context, archive, ref string) error {
	_, err := run(ctx, "", filepath.Join(l.Paths.CRIODir, "copyimg"), "--root", filepath.Join(l.Dir, "crio/storage"),
		"--runroot", filepath.Join(l.Dir, "run/crio/storage"), "--storage-driver", "overlay", "--signature-policy",
		l.imagePolicy(), "--image-name", ref, "--import-from", "docker-archive:"+archive)
	return err
}

// buildPinns builds CRI-O's helper that pins namespaces, its only part in C.
func (l progress) buildPinns(ctx context.Context, module, to string) error {
	out, err := run(ctx, "", "go", "-C", module, "list", "-m", "-f", "{{.Dir}}", "github.com/cri-o/cri-o")
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "pinns/src/*.c"))
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("sources of pinns in %s: %q, %w", out, sources, err)
	}
	_, err = run(ctx, "", append([]string{"gcc", "-std=c99", "-Os", "-static", "-o", filepath.Join(to, "pinns")},
		sources...)...)
	return err
}
