// Package groups connects to an apiserver with a client for each API group that a program reads: the complete clientset
// links all groups.
package groups

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// Group is an API group with its types.
type Group struct {
	Version     schema.GroupVersion
	AddToScheme func(*runtime.Scheme) error
}

// Clients are the clients of one apiserver, by group.
type Clients map[schema.GroupVersion]*rest.RESTClient

// Credentials reads a kubeconfig, which must not name a program, or uses the ServiceAccount of this pod. The connection
// rereads the files in it as they rotate. The caller limits its own requests.
func Credentials(kubeconfig, userAgent string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	if kubeconfig != "" {
		if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
			err = fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if config.ExecProvider != nil || config.AuthProvider != nil {
		return nil, fmt.Errorf("kubeconfig %s: it names a program for credentials: give it a token file or a client certificate", kubeconfig)
	}
	config.UserAgent = userAgent
	config.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	config.WarningHandlerWithContext = rest.NoWarnings{}
	return config, nil
}

// New returns the clients, which share one HTTP client and prefer protobuf, and the codec of their parameters.
func New(config *rest.Config, client *http.Client, groups ...Group) (Clients, runtime.ParameterCodec, error) {
	scheme, builder := runtime.NewScheme(), runtime.NewSchemeBuilder(metav1.AddMetaToScheme)
	for _, group := range groups {
		builder.Register(group.AddToScheme)
	}
	if err := builder.AddToScheme(scheme); err != nil {
		return nil, nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs, clients := serializer.NewCodecFactory(scheme), Clients{}
	for _, group := range groups {
		of := rest.CopyConfig(config)
		of.APIPath, of.GroupVersion, of.NegotiatedSerializer = "/apis", &group.Version, codecs.WithoutConversion()
		if group.Version.Group == "" {
			of.APIPath = "/api"
		}
		of.ContentType = runtime.ContentTypeProtobuf
		of.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		made, err := rest.RESTClientForConfigAndClient(of, client)
		if err != nil {
			return nil, nil, err
		}
		clients[group.Version] = made
	}
	return clients, runtime.NewParameterCodec(scheme), nil
}
