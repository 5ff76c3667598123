package main

import (
	"net/http"
	"net/url"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

func newLogin(o *options) *cobra.Command {
	var name string
	var reader bool
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Print a code that opens the pages in a browser, once",
		Long: `Print the address of the pages, and a code that signs one person in, once, within ten minutes. The pages record
the person's actions under the name given here.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := "operator"
			if reader {
				role = "reader"
			}
			var answer api.SignInCode
			text, err := o.ask(cmd.Context(), http.MethodPost, "/v1/sign-in-codes?"+
				url.Values{"name": {name}, "role": {role}}.Encode(), nil, &answer)
			if err != nil {
				return err
			}
			return o.print(cmd, "login", struct {
				api.SignInCode
				Address string
			}{answer, o.remote().Address()}, text)
		},
	}
	cmd.Flags().StringVar(&name, "name", userName(), "name of the person who signs in")
	cmd.Flags().BoolVar(&reader, "reader", false, "the person only reads: cannot act on a fault or declare maintenance")
	return cmd
}

// userName returns who runs this command; empty if unknown.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
