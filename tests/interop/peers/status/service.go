package main

import (
	"context"
	"net"

	"github.com/waku-org/go-waku/waku/v2/node"
	"github.com/waku-org/go-waku/waku/v2/protocol"
	"github.com/waku-org/go-waku/waku/v2/protocol/lightpush"
	"golang.org/x/time/rate"

	"github.com/status-im/status-go/protocol/common/shard"
)

// serve starts a node that light Messengers depend on: filter and lightpush, joined to the network by relay. The limit
// of one lightpush a second, which go-waku's program has and status-go exceeds with its first message, is off.
func serve(start Start) (string, error) {
	service, err := node.New(
		node.WithHostAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}),
		node.WithClusterID(shard.MainStatusShardCluster),
		node.WithLogger(newLogger(start.Folder)),
		node.WithWakuRelayAndMinPeers(0),
		node.WithWakuFilterFullNode(),
		node.WithLightPush(lightpush.WithRateLimiter(rate.Inf, 0)),
	)
	if err != nil {
		return "", err
	}
	ctx := context.Background()
	if err := service.Start(ctx); err != nil {
		return "", err
	}
	for _, topic := range []string{shard.DefaultShardPubsubTopic(), shard.DefaultNonProtectedPubsubTopic()} {
		if _, err := service.Relay().Subscribe(ctx, protocol.NewContentFilter(topic)); err != nil {
			return "", err
		}
	}
	for _, address := range start.Peers {
		if err := service.DialPeer(ctx, address); err != nil {
			return "", err
		}
	}
	return service.ListenAddresses()[0].String(), nil
}
