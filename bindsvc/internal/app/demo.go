package app

import (
	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/internal/config"
	"github.com/homenode/homenode/bindsvc/internal/demo"
)

func demoCommand(getenv config.Getenv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "Show the whole story on this machine: three nodes, a real Traefik, users who stay",
		Long:    "Builds what is missing, starts Homenode, three small nodes and a real Traefik, and\nshows how users stay on their nodes. Needs a checkout of the source and Go, nothing else.\nONCE=1 ends after the story; otherwise everything stays up until Ctrl-C.",
		Example: "  homenode demo\n  ONCE=1 homenode demo\n  TRAEFIK_BIN=/usr/local/bin/traefik homenode demo",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Run(cmd.Context(), demo.Options{
				Once: getenv("ONCE") == "1", Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
			})
		},
	}
	var node demo.NodeOptions
	nodeCmd := &cobra.Command{
		Use:     "node",
		Short:   "Run one of the demo's nodes: a small server that keeps notes on its own disk",
		Example: "  homenode demo node --name node-1 --listen 127.0.0.1:8981 --data /tmp/node-1",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return demo.RunNode(cmd.Context(), node) },
	}
	node.Flags(nodeCmd.Flags())
	cmd.AddCommand(nodeCmd)
	return cmd
}
