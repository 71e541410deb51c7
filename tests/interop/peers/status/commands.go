package main

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"

	"github.com/status-im/status-go/eth-node/crypto"
	"github.com/status-im/status-go/eth-node/types"
	"github.com/status-im/status-go/protocol"
	"github.com/status-im/status-go/protocol/common"
	"github.com/status-im/status-go/protocol/protobuf"
	"github.com/status-im/status-go/protocol/pushnotificationclient"
	"github.com/status-im/status-go/protocol/requests"
)

// Arguments are the fields that commands read. Keys are hexadecimal and uncompressed, with 0x.
type Arguments struct {
	Key       string   `json:"key"`
	Chat      string   `json:"chat"`
	Text      string   `json:"text"`
	Name      string   `json:"name"`
	Keys      []string `json:"keys"`
	Token     string   `json:"token"`
	Topic     string   `json:"topic"`
	TokenType int32    `json:"token_type"`
	IsOn      bool     `json:"is_on"`
	Address   string   `json:"address"`
}

// commands by their names. Their results are written as JSON.
var commands = map[string]func(*Phone, Arguments) (any, error){
	"serve":         func(p *Phone, _ Arguments) (any, error) { return nil, p.StartPushNotificationsServer() },
	"add_server":    (*Phone).addServer,
	"remove_server": (*Phone).removeServer,
	"register":      (*Phone).register,
	"unregister": func(p *Phone, _ Arguments) (any, error) {
		return nil, p.UnregisterFromPushNotifications(context.Background())
	},
	"is_registered": func(p *Phone, _ Arguments) (any, error) { return p.RegisteredForPushNotifications() },
	"servers":       func(p *Phone, _ Arguments) (any, error) { return p.GetPushNotificationsServers() },
	"contacts_only": func(p *Phone, a Arguments) (any, error) {
		if a.IsOn {
			return nil, p.EnablePushNotificationsFromContactsOnly()
		}
		return nil, p.DisablePushNotificationsFromContactsOnly()
	},
	"block_mentions": func(p *Phone, a Arguments) (any, error) {
		if a.IsOn {
			return nil, p.EnablePushNotificationsBlockMentions()
		}
		return nil, p.DisablePushNotificationsBlockMentions()
	},
	"request_contact": func(p *Phone, a Arguments) (any, error) {
		_, err := p.SendContactRequest(context.Background(), &requests.SendContactRequest{ID: a.Key, Message: a.Text})
		return nil, err
	},
	"accept_contact": func(p *Phone, a Arguments) (any, error) {
		request := &requests.AcceptLatestContactRequestForContact{ID: types.FromHex(a.Key)}
		_, err := p.AcceptLatestContactRequestForContact(context.Background(), request)
		return nil, err
	},
	"block": func(p *Phone, a Arguments) (any, error) {
		_, err := p.BlockContact(context.Background(), a.Key, false)
		return nil, err
	},
	"unblock": func(p *Phone, a Arguments) (any, error) { _, err := p.UnblockContact(a.Key); return nil, err },
	"mute": func(p *Phone, a Arguments) (any, error) {
		return p.MuteChat(&requests.MuteChat{ChatID: a.Chat, MutedType: protocol.MuteTillUnmuted})
	},
	"unmute":     func(p *Phone, a Arguments) (any, error) { return nil, p.UnmuteChat(a.Chat) },
	"contacts":   (*Phone).contacts,
	"chats":      (*Phone).chats,
	"send":       (*Phone).send,
	"group":      (*Phone).group,
	"say":        (*Phone).say,
	"community":  (*Phone).community,
	"share":      (*Phone).share,
	"spectate":   (*Phone).spectate,
	"infos":      (*Phone).infos,
	"reports":    (*Phone).reports,
	"messages":   (*Phone).messages,
	"dial":       func(p *Phone, a Arguments) (any, error) { return nil, dial(p.waku, a.Address) },
	"peer_count": func(p *Phone, _ Arguments) (any, error) { return p.waku.PeerCount(), nil },
}

func (p *Phone) do(name string, line []byte) (any, error) {
	var arguments Arguments
	if err := json.Unmarshal(line, &arguments); err != nil {
		return nil, err
	}
	command, known := commands[name]
	if !known {
		return nil, fmt.Errorf("there is no command %q", name)
	}
	return command(p, arguments)
}

func publicKey(text string) (*ecdsa.PublicKey, error) {
	return crypto.UnmarshalPubkey(types.FromHex(text))
}

func (p *Phone) addServer(a Arguments) (any, error) {
	key, err := publicKey(a.Key)
	if err != nil {
		return nil, err
	}
	return nil, p.AddPushNotificationsServer(context.Background(), key, pushnotificationclient.ServerTypeCustom)
}

func (p *Phone) removeServer(a Arguments) (any, error) {
	key, err := publicKey(a.Key)
	if err != nil {
		return nil, err
	}
	return nil, p.RemovePushNotificationServer(context.Background(), key)
}

func (p *Phone) register(a Arguments) (any, error) {
	tokenType := protobuf.PushNotificationRegistration_TokenType(a.TokenType)
	return nil, p.RegisterForPushNotifications(context.Background(), a.Token, a.Topic, tokenType)
}

// contacts returns the keys of those who accepted and were accepted.
func (p *Phone) contacts(Arguments) (any, error) {
	keys := []string{}
	for _, contact := range p.MutualContacts() {
		keys = append(keys, contact.ID)
	}
	return keys, nil
}

// chats returns the ids of the chats that the app would show.
func (p *Phone) chats(Arguments) (any, error) {
	ids := []string{}
	for _, chat := range p.ActiveChats() {
		ids = append(ids, chat.ID)
	}
	return ids, nil
}

// send writes to one person, as the app does when a chat is opened first. It returns the message's id.
func (p *Phone) send(a Arguments) (any, error) {
	if _, err := p.CreateOneToOneChat(&requests.CreateOneToOneChat{ID: types.FromHex(a.Key)}); err != nil {
		return nil, err
	}
	a.Chat = a.Key
	return p.say(a)
}

// say writes to an existing chat, and returns the message's id.
func (p *Phone) say(a Arguments) (any, error) {
	message := common.NewMessage()
	message.Text = a.Text
	message.ChatId = a.Chat
	message.ContentType = protobuf.ChatMessage_TEXT_PLAIN
	response, err := p.SendChatMessage(context.Background(), message)
	if err != nil {
		return nil, err
	}
	return response.Messages()[0].ID, nil
}

// group makes a group chat with these people and returns its id.
func (p *Phone) group(a Arguments) (any, error) {
	response, err := p.CreateGroupChatWithMembers(context.Background(), a.Name, a.Keys)
	if err != nil {
		return nil, err
	}
	return response.Chats()[0].ID, nil
}

// infos returns the access token of each of a user's installations, from queries or contact codes.
func (p *Phone) infos(a Arguments) (any, error) {
	key, err := publicKey(a.Key)
	if err != nil {
		return nil, err
	}
	return p.rows(
		`SELECT installation_id, access_token, version, hex(server_public_key)
		FROM push_notification_client_info WHERE public_key = ?`, crypto.CompressPubkey(key))
}

// reports returns the rows of the sender's own database about the pushes of a message.
func (p *Phone) reports(a Arguments) (any, error) {
	return p.rows(
		`SELECT installation_id, success, error, retry_count, notification_type
		FROM push_notification_client_sent_notifications WHERE message_id = ?`, types.FromHex(a.Text))
}

// messages returns the texts that came from other people, in the order of their arrival.
func (p *Phone) messages(Arguments) (any, error) {
	return p.rows(`SELECT id, source, text FROM user_messages WHERE source <> ? AND text <> '' ORDER BY rowid`,
		types.EncodeHex(crypto.FromECDSAPub(p.IdentityPublicKey())))
}

func (p *Phone) rows(query string, arguments ...any) ([][]any, error) {
	found, err := p.database.Query(query, arguments...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	columns, err := found.Columns()
	if err != nil {
		return nil, err
	}
	all := [][]any{}
	for found.Next() {
		row, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			places[i] = &row[i]
		}
		if err := found.Scan(places...); err != nil {
			return nil, err
		}
		for i, value := range row {
			if text, isBytes := value.([]byte); isBytes {
				row[i] = string(text)
			}
		}
		all = append(all, row)
	}
	return all, found.Err()
}

// community makes an open community, and returns the id of its chat.
func (p *Phone) community(a Arguments) (any, error) {
	response, err := p.CreateCommunity(&requests.CreateCommunity{
		Name: a.Name, Description: a.Name, Color: "#ffffff", Membership: protobuf.CommunityPermissions_AUTO_ACCEPT,
	}, true)
	if err != nil {
		return nil, err
	}
	return map[string]string{"id": response.Communities()[0].IDString(), "chat": response.Chats()[0].ID}, nil
}

// share sends the description of a community to somebody, as a message.
func (p *Phone) share(a Arguments) (any, error) {
	if _, err := p.CreateOneToOneChat(&requests.CreateOneToOneChat{ID: types.FromHex(a.Key)}); err != nil {
		return nil, err
	}
	message := common.NewMessage()
	message.ChatId, message.Text, message.CommunityID = a.Key, "Come in!", a.Chat
	_, err := p.SendChatMessage(context.Background(), message)
	return nil, err
}

// spectate opens a community that was shared without being a member.
func (p *Phone) spectate(a Arguments) (any, error) {
	_, err := p.SpectateCommunity(types.FromHex(a.Chat))
	return nil, err
}
