package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// kubeconfig is a file with endpoint and credentials. With "exec" it names a program, which runs with the agent's
// rights.
type kubeconfig struct {
	path  string
	named bool // by the configuration, or by a trusted kubelet: a program in it may be run
	found bool // not configured: only root may be able to change the file and the files named in it
}

// maxKubeconfig bounds a kubeconfig with embedded certificates, in bytes.
const maxKubeconfig = 4 << 20

// load reads the file by its path only: it ignores KUBECONFIG and the working directory.
func (k kubeconfig) load() (*rest.Config, error) {
	config, err := k.read()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := clientcmd.NewNonInteractiveClientConfig(*config, config.CurrentContext, &clientcmd.ConfigOverrides{},
		nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", k.path, err)
	}
	if err := k.programs(client); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", k.path, err)
	}
	return client, nil
}

func (k kubeconfig) read() (*clientcmdapi.Config, error) {
	path, err := filepath.Abs(k.path)
	if err != nil {
		return nil, err
	}
	data, err := k.content(path)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, user := range config.AuthInfos {
		user.LocationOfOrigin = path
	}
	for _, cluster := range config.Clusters {
		cluster.LocationOfOrigin = path
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return config, k.checkFiles(config)
}

func (k kubeconfig) content(path string) ([]byte, error) {
	if k.found {
		return owned.Tree{}.Read(path, maxKubeconfig)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxKubeconfig {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxKubeconfig)
	}
	return os.ReadFile(path)
}

// checkFiles checks the files of the current context.
func (k kubeconfig) checkFiles(config *clientcmdapi.Config) error {
	context := config.Contexts[config.CurrentContext]
	if !k.found || context == nil {
		return nil
	}
	var names []string
	if cluster := config.Clusters[context.Cluster]; cluster != nil {
		names = append(names, cluster.CertificateAuthority)
	}
	if user := config.AuthInfos[context.AuthInfo]; user != nil {
		names = append(names, user.ClientCertificate, user.ClientKey, user.TokenFile)
	}
	for _, name := range names {
		if name == "" {
			continue
		}
		if _, err := (owned.Tree{}).Check(name); err != nil {
			return fmt.Errorf("%s names %w", k.path, err)
		}
	}
	return nil
}

// programs decides whether the credential program may be run, and replaces its name with its full path. Root must own
// both the program and the kubeconfig that names it.
func (k kubeconfig) programs(client *rest.Config) error {
	if client.AuthProvider == nil && client.ExecProvider == nil {
		return nil
	}
	if !k.named {
		return fmt.Errorf("it names a program for credentials, and neither the configuration (paths.kubeconfig) nor " +
			"a running kubelet names it")
	}
	if _, err := (owned.Tree{}).Check(k.path); err != nil {
		return fmt.Errorf("it names a program for credentials, and is not believed: %w", err)
	}
	if client.ExecProvider == nil {
		return nil
	}
	program, err := exec.LookPath(client.ExecProvider.Command)
	if err != nil {
		return fmt.Errorf("program for credentials: %w", err)
	}
	if err := owned.Program(program); err != nil {
		return fmt.Errorf("program for credentials: %w", err)
	}
	client.ExecProvider.Command = program
	return nil
}
