// Program status runs one Messenger of status-go for the tests: its own relay node (or a light one), its own SQLCipher
// file, and nothing of status-go changed.
//
// It reads one command a line from stdin, {"id": 1, "do": "send", …}, and writes one answer a line to stdout,
// {"id": 1, "result": …} or {"id": 1, "error": "…"}. It ends when stdin does.
package main

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/multiformats/go-multiaddr"

	"github.com/status-im/status-go/account/generator"
	"github.com/status-im/status-go/appdatabase"
	gethbridge "github.com/status-im/status-go/eth-node/bridge/geth"
	"github.com/status-im/status-go/eth-node/crypto"
	"github.com/status-im/status-go/eth-node/types"
	enstypes "github.com/status-im/status-go/eth-node/types/ens"
	"github.com/status-im/status-go/multiaccounts"
	"github.com/status-im/status-go/multiaccounts/settings"
	"github.com/status-im/status-go/params"
	"github.com/status-im/status-go/protocol"
	"github.com/status-im/status-go/protocol/common/shard"
	"github.com/status-im/status-go/wakuv2"
	"github.com/status-im/status-go/walletdatabase"
)

// Start is the first line: the identity of the Messenger, and its peers in the network.
type Start struct {
	Folder         string   `json:"folder"`
	PrivateKey     string   `json:"private_key"`
	InstallationID string   `json:"installation_id"`
	Peers          []string `json:"peers"` // multiaddresses
	IsLight        bool     `json:"is_light"`
	IsService      bool     `json:"is_service"` // no Messenger, but the node of light ones; the answer is its address
}

// Node gives a Messenger its Waku, as the node of the app does.
type Node struct {
	types.Node
	waku types.Waku
}

func (n *Node) GetWakuV2(any) (types.Waku, error)               { return n.waku, nil }
func (n *Node) GetWaku(any) (types.Waku, error)                 { return nil, fmt.Errorf("no Waku 1") }
func (n *Node) NewENSVerifier(*zap.Logger) enstypes.ENSVerifier { return nil }

// Phone is one running Messenger with the parts that commands use.
type Phone struct {
	*protocol.Messenger
	waku     *wakuv2.Waku
	database *sql.DB
	stop     chan struct{}
}

const (
	password   = "password"
	iterations = 1 // of SQLCipher's key derivation
	tick       = 100 * time.Millisecond
)

func newPhone(start Start, logger *zap.Logger) (*Phone, error) {
	key, err := crypto.HexToECDSA(start.PrivateKey)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(start.Folder, "app.db")
	_, missing := os.Stat(path)
	database, err := appdatabase.InitializeDB(path, password, iterations)
	if err != nil {
		return nil, err
	}
	wallet, err := walletdatabase.InitializeDB(filepath.Join(start.Folder, "wallet.db"), password, iterations)
	if err != nil {
		return nil, err
	}
	accounts, err := multiaccounts.InitializeDB(filepath.Join(start.Folder, "accounts.db"))
	if err != nil {
		return nil, err
	}
	node, err := newNode(start, database, logger)
	if err != nil {
		return nil, err
	}
	account := generator.NewAccount(key, nil)
	identified := account.ToIdentifiedAccountInfo("")
	options := []protocol.Option{
		protocol.WithCustomLogger(logger),
		protocol.WithDatabase(database),
		protocol.WithWalletDatabase(wallet),
		protocol.WithMultiAccounts(accounts),
		protocol.WithAccount(identified.ToMultiAccount()),
		protocol.WithDatasync(),
		protocol.WithToplevelDatabaseMigrations(),
		protocol.WithBrowserDatabase(nil),
		protocol.WithPushNotifications(),
		protocol.WithClusterConfig(params.ClusterConfig{ClusterID: shard.MainStatusShardCluster}),
	}
	if missing != nil {
		options = append(options, protocol.WithAppSettings(newSettings(start.InstallationID), params.NodeConfig{}))
	}
	messenger, err := protocol.NewMessenger(
		"phone", key, &Node{waku: gethbridge.NewGethWakuV2Wrapper(node)}, start.InstallationID, nil, "test", options...,
	)
	if err != nil {
		return nil, err
	}
	if err := messenger.InitInstallations(); err != nil {
		return nil, err
	}
	if _, err := messenger.Start(); err != nil {
		return nil, err
	}
	if err := messenger.EnableSendingPushNotifications(); err != nil {
		return nil, err
	}
	phone := &Phone{messenger, node, database, make(chan struct{})}
	messenger.StartRetrieveMessagesLoop(tick, phone.stop)
	return phone, nil
}

func newSettings(installationID string) settings.Settings {
	fleet := "none" // whose store nodes do not exist
	return settings.Settings{
		Fleet:                     &fleet,
		InstallationID:            installationID,
		ProfilePicturesShowTo:     settings.ProfilePicturesShowToContactsOnly,
		ProfilePicturesVisibility: settings.ProfilePicturesVisibilityContactsOnly,
		URLUnfurlingMode:          settings.URLUnfurlingAlwaysAsk,
	}
}

func newNode(start Start, database *sql.DB, logger *zap.Logger) (*wakuv2.Waku, error) {
	config := &wakuv2.Config{
		Host:                     "127.0.0.1",
		ClusterID:                shard.MainStatusShardCluster,
		LightClient:              start.IsLight,
		MinPeersForFilter:        1,
		EnablePeerExchangeClient: start.IsLight,
		WakuNodes:                start.Peers,
	}
	node, err := wakuv2.New(nil, "", config, logger, database, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := node.Start(); err != nil {
		return nil, err
	}
	if !start.IsLight {
		if err := node.SubscribeToPubsubTopic(shard.DefaultNonProtectedPubsubTopic(), nil); err != nil {
			return nil, err
		}
	}
	for _, address := range start.Peers {
		if err := dial(node, address); err != nil {
			return nil, err
		}
	}
	return node, nil
}

func dial(node *wakuv2.Waku, address string) error {
	parsed, err := multiaddr.NewMultiaddr(address)
	if err != nil {
		return err
	}
	return node.DialPeer(parsed)
}

// Command is one line of stdin; each command reads its own fields.
type Command struct {
	ID int    `json:"id"`
	Do string `json:"do"`
}

// Answer is one line of stdout.
type Answer struct {
	ID     int    `json:"id"`
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	output := json.NewEncoder(os.Stdout)
	if !lines.Scan() {
		return
	}
	var start Start
	err := json.Unmarshal(lines.Bytes(), &start)
	var phone *Phone
	var result any
	if err == nil && start.IsService {
		result, err = serve(start)
	} else if err == nil {
		phone, err = newPhone(start, newLogger(start.Folder))
	}
	_ = output.Encode(answer(0, result, err))
	for err == nil && lines.Scan() {
		var command Command
		result, failure := any(nil), json.Unmarshal(lines.Bytes(), &command)
		if failure == nil {
			result, failure = phone.do(command.Do, lines.Bytes())
		}
		_ = output.Encode(answer(command.ID, result, failure))
	}
	if phone != nil {
		close(phone.stop)
		_ = phone.Shutdown()
		_ = phone.database.Close() // moves the contents of its log into the file
	}
}

func newLogger(folder string) *zap.Logger {
	config := zap.NewDevelopmentConfig()
	config.Level = zap.NewAtomicLevelAt(zap.InfoLevel)
	config.OutputPaths = []string{filepath.Join(folder, "log")}
	config.ErrorOutputPaths = config.OutputPaths
	config.DisableStacktrace = true
	logger, err := config.Build()
	if err != nil {
		return zap.NewNop()
	}
	return logger
}

func answer(id int, result any, err error) Answer {
	if err != nil {
		return Answer{ID: id, Error: err.Error()}
	}
	return Answer{ID: id, Result: result}
}
