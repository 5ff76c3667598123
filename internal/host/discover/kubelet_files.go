package discover

import (
	"errors"
	"io/fs"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/internal/host"
)

// KubeletCredentials are the sources of kubelet's identity for the apiserver.
type KubeletCredentials struct {
	Kubeconfig string // empty: kubelet serves no cluster
	CertDir    string // directory of its signed certificates: kubelet-client-current.pem
}

// FindKubeletCredentials reads the flags of the running kubelet; if none runs, those that the node's distribution would
// give it, or kubeadm's paths.
func FindKubeletCredentials(h *host.Host) (KubeletCredentials, error) {
	found := KubeletCredentials{Kubeconfig: "/etc/kubernetes/kubelet.conf", CertDir: kubeletSettings{}.certificates()}
	if h.Kubelet.Process == nil {
		return found, nil
	}
	d := &discoverer{host: h}
	process, err := runningKubelet(h)
	if err != nil {
		return KubeletCredentials{}, err
	}
	if process.PID == 0 {
		if here, ok := d.installedHere(); ok {
			setIf(&found.Kubeconfig, here.at(here.Kubelet.Kubeconfig))
		}
		return found, nil
	}
	flags, err := d.flagsOf(process)
	if err != nil {
		return KubeletCredentials{}, err
	}
	found.Kubeconfig = d.absolute(flags["kubeconfig"], process.PID)
	if dir := d.absolute(flags["cert-dir"], process.PID); dir != "" {
		found.CertDir = dir
	}
	return found, nil
}

// ClientCertificate is the client certificate in a kubeconfig: its file, or itself in PEM. Both are empty if its user
// authenticates in another way, by a token or a program.
type ClientCertificate struct {
	File string
	PEM  []byte
}

// ReadKubeconfig returns the client certificate of the current context of a kubeconfig. See
// https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/.
func ReadKubeconfig(f host.Files, name string) (ClientCertificate, error) {
	data, err := f.ReadOwned(name)
	if err != nil {
		return ClientCertificate{}, err
	}
	certificate, err := parseKubeconfig(data)
	if err != nil {
		return ClientCertificate{}, &fs.PathError{Op: "parse", Path: name, Err: err}
	}
	if certificate.File != "" && !filepath.IsAbs(certificate.File) {
		certificate.File = filepath.Join(filepath.Dir(name), certificate.File)
	}
	return certificate, nil
}

func parseKubeconfig(data []byte) (ClientCertificate, error) {
	if len(data) > maxKubeletConfig {
		return ClientCertificate{}, errors.New("too large")
	}
	var config struct {
		CurrentContext string `json:"current-context"`
		Contexts       []struct {
			Name    string
			Context struct{ User string }
		}
		Users []struct {
			Name string
			User struct {
				File string `json:"client-certificate"`
				Data []byte `json:"client-certificate-data"`
			}
		}
	}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return ClientCertificate{}, err
	}
	for _, c := range config.Contexts {
		if c.Name != config.CurrentContext {
			continue
		}
		for _, u := range config.Users {
			if u.Name != c.Context.User {
				continue
			}
			if len(u.User.Data) > 0 { // which wins, as in client-go
				return ClientCertificate{PEM: u.User.Data}, nil
			}
			return ClientCertificate{File: u.User.File}, nil
		}
	}
	return ClientCertificate{}, errors.New("no user for the current context")
}
