package lab

import (
	"path/filepath"
	"text/template"
)

// sandboxImage is the image of every pod's first container in containerd.
const sandboxImage = "registry.k8s.io/pause:3.6"

func (l *Lab) containerdConfig() string { return filepath.Join(l.Dir, "config/containerd.toml") }

func (l *Lab) containerdTemplate() *template.Template {
	if l.Paths.ContainerdDir == debianDir {
		return containerd1Template
	}
	return containerd2Template
}

// newContainerdTemplate is a configuration of containerd: its version with the disabled plugins, the common part, the
// rest, and the runtime of containers, which belongs to a plugin whose name differs.
func newContainerdTemplate(runtime, version, rest string) *template.Template {
	return template.Must(template.New("containerd").Parse(version + `root = "{{.Paths.ContainerdRoot}}"
state = "{{.Paths.ContainerdState}}"
oom_score = 0

[grpc]
  address = "{{.Paths.ContainerdSocket}}"

[debug]
  level = "info"

[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
` + rest + `
[plugins."` + runtime + `".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."` + runtime + `".containerd.runtimes.runc.options]
  Root = "{{.Paths.RuncRoot}}"
  SystemdCgroup = {{.Systemd}}
{{- if .Paths.RuncDir}}
  BinaryName = "{{.Paths.RuncDir}}/runc"
{{- end}}
`))
}

// containerd 1.6. Every compiled-in path outside the lab's folder is moved if it can be. restrict_oom_score_adj:
// without CAP_SYS_RESOURCE no sandbox could lower its own.
var containerd1Template = newContainerdTemplate("io.containerd.grpc.v1.cri", `version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
`, `
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.SandboxImage}}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{{.Paths.CNIBinDir}}"
  conf_dir = "{{.Paths.CNIConfDir}}"
  max_conf_num = 1
`)

// containerd 2, in the third version of the file, which 2.0 introduced and every later one reads. NRI would listen in
// /run/nri.
var containerd2Template = newContainerdTemplate("io.containerd.cri.v1.runtime", `version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
`, `
[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.image-verifier.v1.bindir"]
  bin_dir = "{{.Dir}}/opt/image-verifier"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{{.SandboxImage}}"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = []

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{{.Paths.CNIBinDir}}"]
  conf_dir = "{{.Paths.CNIConfDir}}"
  max_conf_num = 1
`)
